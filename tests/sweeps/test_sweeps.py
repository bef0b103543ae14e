"""Sweeps with designs of their own: branches, repeats, exchanged layers, and every named sweep plans."""

import json
import shlex
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from grok.__main__ import main as grok
from grok.analysis.observations import Observations
from grok.analysis.purposes import asked
from grok.run import main
from grok.store import open_store
from grok.streams import STREAMS, derive_seed
from grok.sweeps import branch, layers, repeat
from grok.sweeps.choosing import population, redrawn_seeds
from tests.analysis.simulate import Truth, write
from tests.doors.conftest import TINY as SETTINGS
from tests.doors.conftest import door as door
from tests.gpt.conftest import prepare_text, text_of

TINY = [*SETTINGS, "executor=inline"]


@pytest.fixture(scope="module")
def census(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("census") / "S"
    assert main(["-m", "seed=range(0,6)", *TINY, f"store.path={path}"]) == 0
    return path


@pytest.fixture(scope="module")
def store(census: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(census, tmp_path_factory.mktemp("branch") / "S")


def test_a_layers_weights_are_redrawn_and_nothing_else(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = open_store(store).runs().set_index("run_id")
    parent = before[before["layers"] == "{}"].iloc[0]
    words = ["--store", str(store), "--parents", str(parent.name), "--times", "2"]
    assert branch.main([*words, "--redraw", "layers.head,layers.head+layers.blocks.0", *TINY]) == 0
    new = open_store(store).runs().set_index("run_id").drop(before.index)
    assert sorted(tuple(json.loads(layers)) for layers in new["layers"]) == [("blocks.0", "head")] * 2 + [("head",)] * 2
    assert all((new[f"seed_{s}"] == parent[f"seed_{s}"]).all() for s in STREAMS)
    assert new["weights_hash"].nunique() == 4 and parent["weights_hash"] not in set(new["weights_hash"])
    assert branch.main([*words, "--redraw", "layers.tail", *TINY]) == 2
    assert "'tail' names no tensor" in capfd.readouterr().err


def test_what_was_continued_in_another_store_is_no_member_after_a_merge(census: Path, tmp_path: Path) -> None:
    """That store knew no result when its plan was made, but whoever made it may have."""
    longer, both = tmp_path / "D", tmp_path / "B"
    assert main(["-m", "seed=1,2", *TINY, "train.steps=12", f"store.path={longer}"]) == 0
    assert grok(["store", "merge", str(census), str(longer), "--into", str(both)]) == 0
    assert asked(Observations.read(both))["config.train.steps"].nunique() == 1
    runs = open_store(both).runs()
    assert population(open_store(both), runs, runs) == open_store(census).run_ids()


def test_runs_of_other_settings_that_do_not_count_are_told(
    census: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shutil.copytree(census, tmp_path / "S")
    assert main(["-m", "seed=range(0,3)", *TINY, "optim.weight_decay=2", f"store.path={path}"]) == 0
    words = ["--store", str(path), "--best", "1", "--random", "0", "--at", "3", "dry_run=true"]
    assert branch.main(words) == 0 and "3 finished runs with others do" in capsys.readouterr().out
    assert branch.main([*words, *TINY, "optim.weight_decay=2"]) == 0
    assert "finished runs with others do" not in capsys.readouterr().out


def test_a_branch_of_seeds_whose_curves_are_lost_is_refused(
    census: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shutil.copytree(census, tmp_path / "S")
    for shard in (path / "curves").glob("*.parquet"):
        shard.unlink()
    assert branch.main(["--store", str(path), "--best", "1", "--random", "0", *TINY]) == 2
    assert "no curves" in capsys.readouterr().err


def test_only_master_seeds_are_parents(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scan = store.with_name("scan")
    assert main(["-m", "seeds.init=range(0,3)", *TINY, f"store.path={scan}"]) == 0
    assert branch.main(["--store", str(scan), "--at", "3", *TINY]) == 2
    assert "only master seeds count" in capsys.readouterr().err


def test_the_draws_of_branches_are_those_of_every_stored_branch() -> None:
    assert redrawn_seeds("0123456789abcdef0123", "split+init", 1) == {"split": 1682535175, "init": 260601372}
    assert branch.drawn_parents(0, 29, 3) == [24, 20, 18]


def test_parents_are_chosen_at_a_step_that_all_of_them_reached(tmp_path: Path) -> None:
    stopped = [
        Truth({"seed": s, "train.stop_when_generalised": True, "train.steps": 8000}, 1e3 * s) for s in range(1, 9)
    ]
    words = ["--store", str(write(stopped, tmp_path / "S")), "train.stop_when_generalised=true", "train.steps=8000"]
    assert branch.main([*words, "eval.every=100", "dry_run=true"]) == 0
    assert branch.main([*words, "eval.every=100", "--at", "4000", "dry_run=true"]) == 2


HOW = ["numerics.compile=false", "executor=inline"]


@pytest.fixture(scope="module")
def repeated(census: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(census, tmp_path_factory.mktemp("repeat") / "S")


def test_a_repeat_on_the_other_path_is_not_trained_again_on_another_machine(
    repeated: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--seeds", "5", "--controls", "0", "--kinds", "path", *HOW, f"store.path={repeated}"]
    assert repeat.main(words) == 0
    monkeypatch.setattr("platform.node", lambda: "another")
    assert repeat.main(words) == 0
    assert "1 planned, 1 stored, 0 duplicates, 0 to train" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        (branch, ["--at", "4"], "have a loss at that step"),
        (branch, ["--best", "40"], "finished seeds with these settings"),
        (branch, ["--redraw", "dropout"], "one or two of split, init, order"),
        (branch, ["--seeds", "7"], "FIRST:END"),
        (branch, ["--seeds", "0:7"], "6 of 7 finished"),
        (branch, ["seeds.order=4"], "kept or redrawn"),
        (branch, ["--parents", "zz"], "zz"),
        (branch, ["optim.lr=0.5"], "no finished run to choose from with"),
        (repeat, ["--best", "9"], "ask for fewer"),
        (repeat, ["--kinds", "dropout"], "'dropout' is not one of"),
        (repeat, ["--kinds", "train.steps=20000"], "grok sweep train.steps=... for all seeds"),
        (repeat, ["--times", "0"], "at least 1"),
        (repeat, ["seed=3"], "--seeds names candidates"),
        (repeat, ["optim.weight_decay=7"], "no finished run to choose from with optim.weight_decay=7"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    command: ModuleType, words: list[str], said: str, census: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["--at", "3", *TINY] if command is branch else []
    assert command.main(["--store", str(census), *how, *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and said in error


NAMED = sorted(Path("conf/sweep").glob("*.yaml"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a small corpus, for the sweeps of language models."""
    return str(prepare_text(tmp_path_factory.mktemp("words"), text_of(2000)).path)


@pytest.mark.parametrize("path", NAMED, ids=lambda p: p.stem)
def test_every_command_of_a_sweeps_header_plans_as_it_stands(
    path: Path, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = path.read_text().splitlines()
    assert lines[1].startswith(f"# grok sweep sweep={path.stem}")
    assert all(f"# {word} " in "\n".join(lines) for word in ("Asks", "Costs", "Read"))
    monkeypatch.chdir(tmp_path)
    for i, command in enumerate(line[2:] for line in lines if line.startswith("# grok ")):
        status = grok([*shlex.split(command.replace("=DIR", f"={corpus}"))[1:], "dry_run=true"])
        said = capfd.readouterr()
        assert status == 0, said.err
        assert int(said.out.split(" planned")[0].split()[-1]) > (8 if i == 0 else 0)
    assert not list(tmp_path.iterdir())


def test_a_donor_is_any_init_seed_and_factors_are_ones_own() -> None:
    own = "embedding=token_embedding,position_embedding;head=head"
    runs = layers.planned(["--recipient=4", "--donor-init=512", "--donor-order=8", "--factors", own, *TINY])
    assert len(runs) == 2 * 2**3
    both = {"token_embedding": 512, "position_embedding": 512}
    maps = [{}, both, {"head": 512}, {**both, "head": 512}]
    for order in (None, 8):
        mine = [run.seeds.layers for run in runs if run.seeds.order == order]
        assert sorted(map(str, mine)) == sorted(map(str, 2 * maps))
    assert {run.stream_seeds().split for run in runs} == {derive_seed(4, "split")}


def test_the_examples_in_its_help_plan(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    examples = [line.strip() for line in str(layers.__doc__).splitlines() if line.startswith("  grok ")]
    assert len(examples) == 3
    for example in examples:
        _, door, *words = shlex.split(example)
        assert door == "layers"
        assert layers.main([*words, "dry_run=true", f"store.path={tmp_path / 'S'}"]) == 0
        assert " planned, 0 stored" in capfd.readouterr().out
