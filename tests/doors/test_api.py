"""``import grok`` for notebooks and scripts: few names, loaded when used, equal to the commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import grok
from grok.commands.compose import values_of
from grok.run import _as_words
from tests.analysis.simulate import census, write
from tests.doors.conftest import TINY, Door, environment

INLINE = "executor=inline"


def test_importing_it_imports_nothing() -> None:
    code = "import sys; before = set(sys.modules); import grok; dir(grok); print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.split() if name.startswith("grok")] == ["grok", "grok.version"]
    assert not {"torch", "numpy", "pandas", "hydra"} & set(done.stdout.split())


def test_run_gives_the_row_that_the_command_stores(door: Door, tmp_path: Path) -> None:
    row = grok.run(*TINY, seed=3, store="mine, and only mine")
    assert (row["seed"], row["status"], row["steps"]) == (3, "completed", 6)
    assert door(*TINY, "seed=3", "store.path=command").status == 0
    stored = grok.open_store("command").runs().iloc[0]
    assert row["run_id"] == stored["run_id"]
    assert row["weights_hash"] == stored["weights_hash"]
    again = grok.run(*TINY, seed=3, store="mine, and only mine")
    pd.testing.assert_series_equal(again, row)


def test_sweep_gives_a_row_a_run_in_the_order_of_the_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = grok.sweep(*TINY, INLINE, seed=range(0, 3), optim__lr=[1e-3, 2e-3], optim__betas=[0.9, 0.95], store="S")
    assert rows["seed"].tolist() == [0, 0, 1, 1, 2, 2]
    assert rows["config.optim.lr"].tolist() == [1e-3, 2e-3] * 3
    assert set(rows["config.optim.betas"]) == {"[0.9,0.95]"}
    part = grok.sweep(*TINY, INLINE, "seed=2,1", "optim.lr=2e-3", "optim.betas=[0.9,0.95]", store=Path("S"))
    assert part["run_id"].tolist() == [rows["run_id"][5], rows["run_id"][3]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sed": 3}, "did you mean 'seed'"),
        ({"model__heads": 3}, "model.heads=3"),
        ({"seed": [1, 2]}, "seed=1,2"),
        ({"seed": []}, "seed=.* is empty"),
        ({"seed": object()}, "expected a number, text, or a list of them, not object"),
        ({"store": ""}, "store.path='' is empty"),
    ],
)
def test_what_the_command_refuses_is_refused(
    settings: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(grok.GrokError, match=message):
        grok.run(**settings)
    assert not list(tmp_path.iterdir())


def test_values_are_typed_as_people_type_them() -> None:
    given = {
        "experiment": "gpt/shakespeare_char", "data__path": "my data", "seeds__layers": {"head": 1},
        "resume__run": None,
        "eval__metrics": [["fourier"], []], "precision": ("float32", "float64"),
    }  # fmt: skip
    assert _as_words(given) == [
        "experiment=gpt/shakespeare_char", 'data.path="my data"', "seeds.layers={head:1}", "resume.run=null",
        "eval.metrics=['fourier'],[]".replace("'", ""), "precision=float32,float64",
    ]  # fmt: skip


def test_text_stays_text_and_numbers_may_be_given_as_text() -> None:
    given = {"store": "2024_11", "eval__prompt": ["1e3", "true", "x\\d+"], "optim__lr": "1e-3", "seed": "7"}
    words = _as_words({**given, "resume__run": "12345e67", "task__plugin": {"_target_": "a.b", "size": "1e3"}})
    assert values_of([word for word in words if "eval.prompt" not in word]) == {
        "store.path": "2024_11", "optim.lr": 1e-3, "seed": 7, "resume.run": "12345e67",
        "task.plugin": {"_target_": "a.b", "size": "1e3"},
    }  # fmt: skip
    assert words[1] == 'eval.prompt="1e3","true","x\\d+"'


class TestStudies:
    def test_of_a_store_are_data_frames(self, tmp_path: Path) -> None:
        import numpy as np

        store = write(census(30, np.random.default_rng(5), steps=20_000, every=500), tmp_path / "S")
        studies = grok.studies(store)
        assert len(studies["census"].table("best_seeds")) > 0
        findings = studies["census"].findings
        assert ((findings["low"] <= findings["value"]) & (findings["value"] <= findings["high"]))[
            findings["value"].notna()
        ].all()
        assert set(studies.findings["study"]) >= {"census", "survival"}
        assert studies.overview.set_index("study")["answered"]["census"]
        assert studies["census"].table("no_such_table").empty
