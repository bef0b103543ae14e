"""Settings as people type them: files that plan, Hydra's habits, and refusals in one line."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from grok.__main__ import main as grok
from grok.commands.compose import compose
from grok.commands.store import main as store_main
from grok.commands.words import CONF
from grok.config import ArithmeticConfig, flatten, load_config, load_configs
from grok.errors import ConfigError
from grok.untrusted import HIDDEN
from tests.doors.conftest import TINY, Door, Ended
from tests.store.conftest import store_of
from tests.store.contract import example_rows

LAYER = ["-m", *TINY, "dry_run=true"]
CASES = {
    "misspelt key": (["task.modulos=97"], ["unknown setting 'task.modulos'", "did you mean 'task.modulus'?"]),
    "a named sweep": (["sweeps.layers=64"], ["unknown setting 'sweeps.layers'", "a command: grok layers --help"]),
    "a sweep without -m": (["sweep=census"], ["sweep=census", "many runs", "-m"]),
    "a bare word": (["quickstart"], ["'quickstart' is no setting", "NAME=VALUE"]),
    "an option for a setting": (["--seed", "3"], ["unrecognized arguments: --seed", "NAME=VALUE"]),
    "a setting of the other mode": (["model.context=7"], ["model.context is a setting of mode=gpt", "mode=arithmetic"]),
    "unreadable": (["seed=[1,2"], ["seed=[1,2", "cannot be read"]),
    "heads": (["model.heads=3"], ["model.heads=3", "model.d_model=128", "2, 4"]),
    "composite": (["task.modulus=100"], ["task.modulus=100", "prime", "101"]),
    "precision of a GPU": (["precision=tf32", "device=cpu"], ["precision=tf32", "float32"]),
    "precision of other kernels": (["precision=tf32x3"], ["precision=tf32x3", "numerics.kernels=fused"]),
    "precision of another mode": (["mode=gpt", "precision=tf32x3"], ["precision=tf32x3", "bf16"]),
    "no GPU": (["device=cuda"], ["device=cuda", "device=cpu"]),
    "another GPU": (["device=gpu"], ["device='gpu' is not known: one of auto, cpu, cuda"]),
    # sizes that no machine has: said at once, nothing is made of them
    "endless range": (["-m", "seed=range(0,1e12)"], ["seed=range(0,1e12)", "too many", "at most 1,000,000"]),
    "a study without a search": (["study=quickstart"], ["study= names a search", "grok search"]),
    # words that Hydra has no error of its own for
    "no experiment": (["experiment=null"], ["experiment=null is not known", "quickstart"]),
    "Hydra's folder in a file": (["hydra.run.dir=/dev/null/x"], ["/dev/null/x"]),
    "a reference to nothing": (["store.path=a/${x}/b"], ["store.path", "${x}", "none of this name"]),
    "empty range": (["-m", "seed=range(0,0)"], ["seed=range(0,0)", "is empty"]),
    "bad job of a sweep": (["-m", "seed=1,2,-3"], ["seed=-3", "at least 0"]),
    "two stores": (["-m", "store.path=a,b"], ["store.path", "one value"]),
    "sweep over Hydra": (["-m", "hydra.verbose=true,false"], ["hydra.verbose=true,false"]),
    "layer without a tensor": (
        [*LAYER, "seeds.layers.heed=range(0,3)"],
        ["'heed' names no tensor", "did you mean 'head'?"],
    ),
    "layer in a layer": ([*LAYER, "seeds.layers.head=1", "seeds.layers.head.weight=x"], ["seeds.layers"]),
    "layer twice": (
        [*LAYER, "seeds.layers={blocks.0.mlp:4}", "seeds.layers.blocks.0.mlp=5"],
        ["seeds.layers.blocks.0.mlp is given twice"],
    ),
    "gpt without data": (["mode=gpt", "experiment=gpt/shakespeare_char"], ["data.path", "grok prepare"]),
}


def refused(ended: Ended, *, says: list[str], folder: Path, before: frozenset[str] = frozenset()) -> None:
    """Check that a command was refused as the house refuses."""
    assert ended.status == 2, ended
    lines = ended.err.strip().splitlines()
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("error: ")
    for words in says:
        assert words in lines[0]
    assert "Traceback" not in ended.err + ended.out
    assert {entry.name for entry in folder.iterdir()} == before, "something was written"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("seed=0-15", "seed=range(0,16)"), ("seed=3..5", "seed=range(3,6)"), ("seeds=range(0,4)", "seed=range(0,4)"),
        ("store=foo", "store.path=foo"), ("--experiment quickstart", "NAME=VALUE"), ("epochs=3", "train.steps"),
        ("optim.learning_rate=1", "optim.lr"), ("seed=1,2", "grok sweep"),
    ],
)  # fmt: skip
def test_what_other_programs_call_it_is_understood(door: Door, tmp_path: Path, word: str, meant: str) -> None:
    refused(door(*word.split()), says=[meant], folder=tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_refused_in_one_line(door: Door, tmp_path: Path, case: str) -> None:
    words, says = CASES[case]
    refused(door(*words), says=says, folder=tmp_path)


def test_the_traceback_is_there_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ConfigError, match="seed=-1"):
        grok(["run", "seed=-1"])


LONG = "x" * 300
LAYERS = ["layers", "--recipient", "0", "--donor", "1", *TINY]
SEARCH = ["search", "study=quickstart"]
GPT = ["experiment=gpt/shakespeare_char", "data.path=C"]
DIARY = ["search", "study=diary", "store.path=N", "train.stop_when_generalised=true"]
BPE = ["prepare", "text", "--input", "text.txt", "--tokenizer", "bpe", "--out", "P", "--vocab-size", "1000000000"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*LAYERS, "model.layers=10"], "16,777,216 runs are too many"),
        ([*LAYERS, "--factors", "a=blocks;b=blocks.0.mlp"], "blocks.0.mlp is part of blocks"),
        ([*SEARCH, "study.trails=3"], "did you mean 'study.trials'"),
        ([*SEARCH, "seed=5"], "study.first_seed=5"),
        ([*SEARCH, "force=true"], "expected force=false"),
        (DIARY, "train.stop_when_generalised=false"),
        (["search", "store.path=N"], "expected study=NAME"),
        (BPE, "at most 1,000,000"),
        (["find", "lr", *GPT, "--out", "text.txt/x"], "text.txt is no folder"),
        (["find", "batch_size", GPT[0]], "data.path is not given"),
        (["report", "S", "--out", LONG], "File name too long"),
        (["show", "zz", "--store", "S"], "begins with 'zz'"),
        (["hf", "export", "a", "--store", "S", "--out", ""], "got an empty text"),
        (["store", "merge", "S", "--into", "S"], "cannot be merged into itself"),
        (["run", "store.path=S/inner", "dry_run=true"], "inside the store"),
        (["run", "store.path=s3://bucket/S", "dry_run=true"], "a store is a folder"),
    ],
)
def test_refused_in_one_line_before_any_work(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("some text\n" * 100)
    if any(word == "S" or "=S/" in word for word in words):
        store_of("S", example_rows(range(1)))
    before = sorted(tmp_path.rglob("*"))
    assert grok(words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1, printed.err
    assert says in printed.err
    assert not printed.out
    assert sorted(tmp_path.rglob("*")) == before, "something was written"


@pytest.mark.parametrize(
    ("option", "name"),
    [
        *(("store.path", name) for name in ("2024_11_21", "1.10", "inf", ".5", "-1", "é")),
        *(("--store", name) for name in ("2024_11_21", "1e3", "null", "true", "a\\b", "a\\", "é")),
    ],
)
def test_a_store_has_the_name_that_was_typed(door: Door, option: str, name: str) -> None:
    """To Hydra 2024_11_21 is the number 20241121, and 1.10 is 1.1."""
    ended = door(*([option, name] if option == "--store" else [f"{option}={name}"]), "dry_run=true")
    assert ended.last.endswith(f" The store would be {name}."), ended


def test_a_password_is_shown_nowhere(door: Door, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for word in ("+model.layers={}", "store.path={}x", "data.path={}", "{}", "task.operation={}"):
        ended = door(word.format("postgresql://me:se/cret@host/db"), "dry_run=true")
        assert "se/cret" not in ended.err + ended.out, ended
    for name in ("status", "verify", "compact", "migrate", "restore"):
        assert store_main([name, "postgresql://me:se/cret@host/db"]) == 2
        shown = capfd.readouterr().err
        assert "se/cret" not in shown and HIDDEN in shown
    assert HIDDEN in door("model.layers=postgresql://me:se/cret@host/db").err


EXPERIMENTS = sorted(file.stem for file in (CONF / "experiment").glob("*.yaml"))


def test_the_files_say_what_the_code_defaults_to() -> None:
    composed, flat = compose([]), dict[str, object]()

    def walk(node: dict[str, Any], prefix: str) -> None:
        for key, value in node.items():
            if isinstance(value, dict) and value:
                walk(value, f"{prefix}{key}.")
            else:
                flat[f"{prefix}{key}"] = value

    walk(composed, "")
    defaults = flatten(ArithmeticConfig())
    assert flat.keys() == defaults.keys() - {"experiment"}, "every setting stands in a file, and nothing else"
    assert flatten(load_config(composed)) == defaults


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_opens_with_its_own_command_which_plans(door: Door, name: str) -> None:
    lines = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()
    assert lines[0] == "# @package _global_"
    words = shlex.split(lines[1].removeprefix("#"))
    assert words[:2] == ["grok", "sweep"]
    assert f"experiment={name}" in words
    planned = door("-m", *words[2:], "dry_run=true", "store.path=S")
    assert planned.status == 0, planned


def test_jobs_that_share_groups_of_settings_are_checked_as_each_alone() -> None:
    shared = {"lr": 0.5}
    jobs: list[dict[str, Any]] = [{"seed": seed, "optim": shared, "train": {"steps": 3 + seed}} for seed in range(3)]
    jobs.append({"mode": "arithmetic", "seed": 9, "optim": dict(shared), "log": {}})
    configs = load_configs(jobs)
    assert configs == [load_config(job) for job in jobs]
    assert configs[0].optim is configs[1].optim is not configs[3].optim  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"optim\.lr"):
        load_configs([*jobs, {"optim": {"lr": -1}}])


MINE = """# @package _global_
defaults:
  - quickstart
  - override /mode: arithmetic
experiment: mine
optim:
  lr: 0.02
"""


def test_set_ups_of_a_folder_of_ones_own(door: Door, tmp_path: Path) -> None:
    (tmp_path / "conf/experiment").mkdir(parents=True)
    (tmp_path / "conf/experiment/mine.yaml").write_text(MINE)
    assert "1 to train" in door("--config-dir", "conf", "experiment=mine", "dry_run=true").out
    assert "1 to train" in door(f"hydra.searchpath=[file://{tmp_path}/conf]", "experiment=mine", "dry_run=true").out
    assert "mine, nanda" in door("--config-dir", "conf", "experiment=absent", "dry_run=true").err


CALLBACK = """
from hydra.experimental.callback import Callback

class Tell(Callback):
    def __getattribute__(self, name):
        if not name.startswith("on_"):
            return super().__getattribute__(name)
        return lambda config, **more: print("callback", name, config.hydra.job.name)
"""


def test_callbacks_and_job_names(door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is a job; the runs of a sweep are trained together, so that none is a job of its own."""
    (tmp_path / "tell.py").write_text(CALLBACK)
    monkeypatch.syspath_prepend(tmp_path)
    told = ["+hydra.callbacks.tell._target_=tell.Tell", "hydra.job.name=mine", "dry_run=true"]
    for words, expected in (
        ([], ["on_run_start", "on_job_start", "on_job_end", "on_run_end"]),
        (["-m", "seed=1,2"], ["on_multirun_start", "on_multirun_end"]),
    ):
        ended = door(*TINY, *words, *told)
        calls = [line.split() for line in ended.out.splitlines() if line.startswith("callback")]
        assert [(name, job) for _, name, job in calls] == [(name, "mine") for name in expected], ended


@pytest.mark.parametrize(
    ("words", "says"),
    [
        # a batch or job would replace the outcome of the one before: a failure, Ctrl-C and rows were lost
        (["-m", "seed=1,2", "hydra.sweeper.max_batch_size=1"], "hydra.sweeper.max_batch_size: .* one plan"),
        (["-m", "seed=1,2", "hydra/launcher=basic", "hydra/sweeper=basic"], "hydra/launcher=basic: .*executor="),
        (["-m", "seed=1,2", "hydra/launcher=submitit_slurm"], "loky, dask, ray or slurm"),
        # what jobs have, and a plan has not
        (["-m", "seed=1,2", "+hydra.job.env_set.FOO=1"], "hydra.job.env_set: .*FOO=1 grok sweep"),
        (["-m", "seed=1,2", "+hydra.job.env_copy=[PATH]"], "hydra.job.env_set: "),
        (["-m", "seed=1,2", "hydra.job.chdir=true"], "hydra.job.chdir: .*store.path"),
        (["--experimental-rerun", "x"], "--experimental-rerun .*expected --again RUN"),
        (["-m", "model.layers=range(1,3),5"], "model.layers=range\\(1,3\\),5: a range among other values"),
    ],
)
def test_what_a_plan_cannot_do_is_refused(door: Door, tmp_path: Path, words: list[str], says: str) -> None:
    ended = door(*TINY, *words)
    assert ended.status == 2 and re.search(says, ended.err) and ended.err.count("\n") == 1, ended
    assert not (tmp_path / "results").exists(), "a store was made"
