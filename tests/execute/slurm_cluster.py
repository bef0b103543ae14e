"""A real SLURM cluster on this machine: munged, slurmctld and slurmd of Debian's slurm-wlm, in a folder of its own."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")

CONF = """
ClusterName=seeds
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
MpiDefault=none
ReturnToService=2
SwitchType=switch/none
SlurmdParameters=config_overrides
JobRequeue=1
MaxArraySize={max_array_size}
KillWait=5
MinJobAge=20
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Return why no cluster can be started here, or None."""
    missing = [program for program in PROGRAMS if _which(program) is None]
    if missing:
        return f"{', '.join(missing)} not found: apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return "SLURM's daemons need root"
    return None


def _which(program: str) -> str | None:
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def slurm_cluster(folder: Path, *, max_array_size: int = 5, cpus: int = 2) -> Iterator[dict[str, str]]:
    """Start a cluster in ``folder``; yield the environment in which its commands work; end it.

    ``cpus`` is what the node says it has, whatever the machine has.

    Raises:
        RuntimeError: it did not come up; the message ends with the daemons' logs.
    """
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    folder.chmod(0o755)  # munged wants its socket's folder open to all, and closed to writing
    conf = folder / "slurm.conf"
    conf.write_text(
        CONF.format(
            host=socket.gethostname().split(".")[0],
            folder=folder,
            controller=free_port(),
            daemon=free_port(),
            max_array_size=max_array_size,
            cpus=cpus,
        )
    )
    # without systemd slurmd makes its control groups itself; none of the plugins above puts a job into one
    version = "cgroup/v1" if Path("/sys/fs/cgroup/freezer").exists() else "cgroup/v2"
    (folder / "cgroup.conf").write_text(f"CgroupPlugin={version}\nIgnoreSystemd=yes\nIgnoreSystemdOnFailure=yes\n")
    environment = {"SLURM_CONF": str(conf), "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
    files = [f"--{n}={folder}/munge.{n.split('-')[0]}" for n in ("socket", "pid-file", "log-file", "seed-file")]
    daemons = [
        ["munged", "--foreground", "--force", f"--key-file={key}", *files],
        ["slurmctld", "-D", "-f", str(conf)],
        ["slurmd", "-D", "-f", str(conf), "-c"],
    ]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for words in daemons:
            program = _which(words[0])
            assert program is not None, why_not()
            with (folder / f"{words[0]}.out").open("wb") as out:
                running.append(
                    subprocess.Popen(
                        [program, *words[1:]],
                        env={**os.environ, **environment},
                        stdout=out,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
            if words[0] == "munged":
                _wait((folder / "munge.socket").exists, folder)
        _wait(lambda: _node_state(environment) == "idle", folder)
        yield environment
    finally:
        subprocess.run(
            ["scancel", "--quiet", "--me"], env={**os.environ, **environment}, check=False, capture_output=True
        )
        for daemon in reversed(running):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _node_state(environment: dict[str, str]) -> str:
    said = subprocess.run(
        ["sinfo", "--noheader", "--format=%t"],
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    return said.stdout.strip()


def _wait(ready: object, folder: Path, seconds: float = 60.0) -> None:
    assert callable(ready)
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            logs = [*folder.glob("*.log"), *folder.glob("*.out")]
            raise RuntimeError("\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-2000:]}" for log in logs))
        time.sleep(0.2)
