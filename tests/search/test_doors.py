"""The command with real training; refusals write nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from grok.commands.compose import apply
from grok.config import load_config
from sweeps.search.__main__ import compose_study, main
from sweeps.search.config import split_study
from sweeps.search.driver import Search, by_execution
from sweeps.search.space import read_space

STUDIES = sorted(
    path.stem for path in (Path(__file__).parents[2] / "conf" / "study").glob("*.yaml") if path.stem != "base"
)


@pytest.mark.parametrize("name", STUDIES)
def test_every_named_study_is_sound(name: str) -> None:
    """Its space, its objectives and its default's settings go together, at both ends of every setting."""
    study, raw, base = split_study(compose_study([f"study={name}"]))
    assert study.name == name
    space = read_space(raw, str(base["mode"]))
    search = Search(study, space, base, by_execution(()), print)
    assert "trials of" in search.plan()
    for dimension in space.dimensions:
        for value in dimension.grid(2):
            load_config(apply(base, {dimension.name: value}))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["study=quickstrt"], "did you mean 'quickstart'"),
        (["store.path=S"], "expected study=NAME"),
        (["store.path=S", "study.trials=3"], "expected study=NAME"),
        (["study=quickstart", "seed=5"], "study.first_seed=5"),
        (["study=quickstart", "study.objectives=[val_loss]", "study.horizon=333"], "multiple of eval.every"),
        (
            ["study=diary", "train.stop_when_generalised=true", "train.stop_horizon=1000", "store.path=S"],
            "train.stop_horizon=1000",
        ),
        (["study=quickstart", "study.trails=3"], "did you mean 'study.trials'"),
        (["study=quickstart", "study.trials=0"], "at least 1"),
        (["study=quickstart", "study.sampler.name=tp"], "did you mean 'tpe'"),
        (["study=quickstart", "modl.layers=1"], "did you mean 'model.layers'"),
        (["study=quickstart", "study.horizon=5000"], "beyond train.steps"),
        (["study=quickstart", "force=true"], "expected force=false"),
        (["study=quickstart", "study.compare=32", "store.path=S"], "still to be made"),
    ],
)
def test_refusals(
    words: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert expected in error
    assert len(error.splitlines()) == 1
    assert "secret" not in error
    assert not list(tmp_path.iterdir())
