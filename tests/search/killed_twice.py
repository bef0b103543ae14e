"""``python -m tests.search.killed_twice [--out DIR] [--study NAME] [overrides]``: the same study, killed and not.

Carries a study out twice: once undisturbed, once killed (SIGKILL) at a third and at two
thirds of its trials and given again. Both must have made the same trials. Then the best
setting, pinned, is compared with the default on fresh seeds, and the figures are drawn.

Writes below DIR (default results/search): killed_twice.json, the summary and comparison of
the study, and figures/. The two stores go to DIR/stores.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from analysis.documents import searches
from grok.cli.command import Parser, command
from grok.errors import ConfigError, TrainingError
from grok.store import Provenance


@command()
def main(argv: list[str]) -> int:
    """Return 0 when the trials are the same, 1 when they are not."""
    parser = Parser(prog="python -m tests.search.killed_twice", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/search"))
    parser.add_argument("--study", default="quickstart")
    given, overrides = parser.parse_known_args(argv)
    return rehearse(given.out, [f"study={given.study}", *overrides])


def rehearse(out: Path, words: list[str]) -> int:
    """Carry the study of ``words`` out both ways; return 0 when the trials are the same, 1 when they are not.

    Raises:
        ConfigError: it was done in ``out`` already.
        TrainingError: a study did not finish, or finished before it could be killed.
    """
    begun = time.time()
    stores = {name: out / "stores" / name for name in ("undisturbed", "killed")}
    if stores["killed"].exists():
        raise ConfigError(f"--out {out}: {stores['killed']} is there already, and a finished study cannot be killed")
    finish(words, stores["undisturbed"])
    kills = [kill_at(share, words, stores["killed"]) for share in (1 / 3, 2 / 3)]
    finish(words, stores["killed"])
    name, whole = summary(stores["undisturbed"])
    _, killed = summary(stores["killed"])
    same = whole["trials"] == killed["trials"]
    finish([*words, "study.compare=true"], stores["undisturbed"])
    machine = Provenance.collect().on_this_machine()
    result = {
        "command": shlex.join(
            ["python", "-m", "tests.search.killed_twice", "--out", str(out), "--study", name, *words[1:]]
        ),
        "same_trials": same,
        "trials": len(whole["trials"]),
        "seeds": whole["definition"]["study"]["seeds"],
        "killed_after_trials": kills,
        "seconds": round(time.time() - begun),
        "host": machine.host,
        "git_commit": machine.git_commit,
        "git_dirty": machine.git_dirty,
        "torch_version": machine.torch_version,
    }
    (out / "killed_twice.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for kind, part in zip(("", ".comparison", ".compared"), searches(stores["undisturbed"]), strict=False):
        (out / f"{name}{kind}.json").write_text(json.dumps(part) + "\n", encoding="utf-8")
    subprocess.run([sys.executable, "-m", "analysis.search", str(stores["undisturbed"]), "--out", str(out)], check=True)
    print(
        f"{len(whole['trials'])} trials, killed after {kills}: {'the same trials' if same else 'OTHER TRIALS'} as "
        f"undisturbed; in {out}"
    )
    return 0 if same else 1


def command(words: list[str], store: Path) -> list[str]:
    """Return the search's command on ``store``."""
    return [sys.executable, "-m", "sweeps.search", *words, f"store.path={store}"]


def finish(words: list[str], store: Path) -> None:
    """Carry a study out, or on, to its end.

    Raises:
        TrainingError: it did not get there.
    """
    if subprocess.run(command(words, store), check=False).returncode:
        raise TrainingError(f"the study in {store} did not finish")


def kill_at(share: float, words: list[str], store: Path) -> int:
    """Carry a study on, kill it once this share of its trials has finished; return how many had."""
    process = subprocess.Popen(command(words, store))
    planned = int(dict(word.split("=", 1) for word in ["study.trials=60", *words])["study.trials"])
    while process.poll() is None:
        done = progress(store)
        if done >= share * planned:
            time.sleep(1.0)  # into the next round
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return progress(store)
        time.sleep(0.2)
    raise TrainingError(f"the study in {store} ended (status {process.returncode}) before it could be killed")


def progress(store: Path) -> int:
    """Return how many trials have finished."""
    studies = searches(store)
    return sum(trial["state"] != "running" for trial in studies[0]["trials"]) if studies else 0


def summary(store: Path) -> tuple[str, dict[str, Any]]:
    """Return the name and the record of the one study in a store."""
    study = searches(store)[0]
    return study["name"], study


if __name__ == "__main__":
    sys.exit(main())
