"""Repeats: the best of a store or named seeds, and controls that were drawn without looking."""

from __future__ import annotations

from pathlib import Path

import pytest

from grok.run import main
from grok.store import open_store
from sweeps.repeat import main as repeat

TINY = [
    "task.operation=x+y", "task.modulus=7", "model.d_model=8", "model.heads=2", "model.d_ff=8", "model.layers=1",
    "train.steps=6", "train.batch_size=8", "eval.every=3", "numerics.compile=false", "executor=inline",
]  # fmt: skip
HOW = ["numerics.compile=false", "executor=inline"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repeat") / "S"
    assert main(["-m", "seed=range(0,6)", *TINY, f"store.path={path}"]) == 0
    return path


def test_best_and_controls_are_repeated_in_each_way(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = open_store(store).runs().set_index("run_id")
    words = ["--store", str(store), "--best", "1", "--times", "2", "--kinds", "ulp,order,again,precision"]
    assert repeat([*words, *HOW, "precision=float64"]) == 0
    after = open_store(store).runs().set_index("run_id")
    new = after.drop(before.index)
    best = before.sort_values(["val_acc", "val_loss"], ascending=[False, True])["seed"].iloc[0]
    assert new["seed"].nunique() == 2 and best in set(new["seed"])
    assert len(new) == 2 * (2 + 2 + 1 + 1)
    own = new["seed"].map(before.set_index("seed")["seed_order"])
    redrawn = new["seed_order"] != own
    assert redrawn.sum() == 4 and new.loc[redrawn, "seed_order"].nunique() == 4
    assert (new["seed_init"] == new["seed"].map(before.set_index("seed")["seed_init"])).all()
    assert (new["config.perturb.ulps"] > 0).sum() == 4
    again = new[new["replicate"] > 0]
    assert (again["weights_hash"] == again["seed"].map(before.set_index("seed")["weights_hash"])).all()
    assert new["config.precision"].value_counts().to_dict() == {"float32": 10, "float64": 2}
    assert repeat([*words, *HOW, "precision=float64"]) == 0  # the same command trains nothing
    assert "12 stored, 0 duplicates, 0 to train" in capfd.readouterr().out


def test_a_repeat_on_the_other_path_is_not_trained_again_on_another_machine(
    store: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--seeds", "5", "--controls", "0", "--kinds", "path", *HOW, f"store.path={store}"]
    assert repeat(words) == 0
    monkeypatch.setattr("platform.node", lambda: "another")
    assert repeat(words) == 0
    assert "1 planned, 1 stored, 0 duplicates, 0 to train" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--best", "9"], "ask for fewer"),
        (["--kinds", "dropout"], "'dropout' is not one of"),
        (["--kinds", "precision"], "needs the precision"),
        (["--kinds", "train.steps=20000"], "expected grok sweep train.steps=... for all seeds"),
        (["--kinds", "numerics.path=plain"], "or --kinds path or again"),
        (["--times", "0"], "at least 1"),
        (["seed=3"], "--seeds names candidates"),
        (["optim.weight_decay=7"], "no finished run to choose from with optim.weight_decay=7"),
        (["--seeds", "77"], "77"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    words: list[str], said: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert repeat(["--store", str(store), *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and said in error
