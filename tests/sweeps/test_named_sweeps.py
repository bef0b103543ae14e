"""Every named sweep plans; the small ones of them train."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

import sweeps.layers
from grok.__main__ import main as grok
from grok.config import RunConfig
from grok.execute import Outcome
from grok.streams import derive_seed
from sweeps.layers import combinations
from sweeps.layers import main as layers
from tests.doors.conftest import door as door  # runs grok.run in an empty folder
from tests.gpt.conftest import prepare_text, text_of

NAMED = sorted(Path("conf/sweep").glob("*.yaml"))
TINY = [
    "task.operation=x+y", "task.modulus=7", "model.d_model=8", "model.heads=2", "model.d_ff=8", "model.layers=1",
    "train.steps=6", "train.batch_size=8", "eval.every=3", "numerics.compile=false", "executor=inline",
]  # fmt: skip


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


def planned(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[RunConfig]:
    """Return the runs that a command of sweeps.layers asks for."""
    asked: list[RunConfig] = []

    def take(configs: Sequence[RunConfig], *, argv: Sequence[str]) -> Outcome:
        asked.extend(configs)
        return Outcome((), {}, {}, 0)

    monkeypatch.setattr("sweeps.layers.execute", take)
    assert layers([*words, *TINY]) == 0
    return asked


def test_a_donor_is_any_init_seed_and_factors_are_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "embedding=token_embedding,position_embedding;head=head"
    runs = planned(monkeypatch, "--recipient=4", "--donor-init=512", "--donor-order=8", "--factors", own)
    assert len(runs) == 2 * 2**3
    both = {"token_embedding": 512, "position_embedding": 512}
    maps = [{}, both, {"head": 512}, {**both, "head": 512}]
    for order in (None, 8):
        mine = [run.seeds.layers for run in runs if run.seeds.order == order]
        assert sorted(map(str, mine)) == sorted(map(str, 2 * maps))
    assert {run.stream_seeds().split for run in runs} == {derive_seed(4, "split")}


def test_the_examples_in_its_help_plan(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    examples = [line.strip() for line in str(sweeps.layers.__doc__).splitlines() if line.startswith("  grok ")]
    assert len(examples) == 3
    for example in examples:
        _, door, *words = shlex.split(example)
        assert door == "layers"
        assert layers([*words, "dry_run=true", f"store.path={tmp_path / 'S'}"]) == 0
        assert " planned, 0 stored" in capfd.readouterr().out


def test_sampled_designs_are_balanced_and_refuse_too_few() -> None:
    names = list("abcdefg")
    chosen = combinations(names, 80, 3)
    assert len(chosen) == len(set(chosen)) == 80
    assert all(frozenset(names) - subset in chosen for subset in chosen)
    assert combinations(names, 80, 3) == chosen
    assert len(combinations(names, None, 0)) == 128


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--combinations", "9"], "at least"),
        (["--replicates", "0"], "at least 1"),
        (["--donor", "0"], "two different seeds"),
        (["--donor", "-1"], "--donor -1: expected a whole number, at least 0"),
        (["--donor-init", "3"], "not allowed with argument --donor"),
        (["--donor", "x"], "--donor x: expected a whole number"),
        (["--both", "--donor-order", "3"], "expected only --donor SEED"),
        (["--factors", "head"], "'head' is not NAME=LAYER"),
        (["--factors", "a=blocks;b=blocks.0.mlp"], "blocks.0.mlp is part of blocks"),
        (["--factors", "a=head;a=blocks"], "the name 'a' is used twice"),
        (["--factors", "a=hood"], "'hood' names no tensor"),
        (["seeds.layers.head=4"], "--factors says which layers"),
        (["seed=4"], "--recipient is the master seed"),
    ],
)
def test_bad_input_is_refused_in_one_line(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert layers(["--recipient", "0", "--donor", "1", *TINY, *given]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and said in error
