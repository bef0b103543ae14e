"""Every named sweep plans; the small ones of them train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grok.cli.compose import compose
from grok.run import main
from grok.store import open_store
from sweeps.layers import combinations, factors
from sweeps.layers import main as layers
from sweeps.settings import arithmetic

NAMED = sorted(Path("conf/sweep").glob("*.yaml"))
TINY = [
    "task.operation=x+y", "task.modulus=7", "model.d_model=8", "model.heads=2", "model.d_ff=8", "model.layers=1",
    "train.steps=6", "train.batch_size=8", "eval.every=3", "numerics.compile=false", "executor=inline",
]  # fmt: skip


@pytest.mark.parametrize("path", NAMED, ids=lambda p: p.stem)
def test_a_named_sweep_opens_with_its_own_command_and_plans(
    path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = path.read_text().splitlines()
    assert lines[1].startswith(f"# python -m grok.run -m sweep={path.stem}")
    text = "\n".join(lines)
    assert all(f"# {word} " in text for word in ("Asks", "Costs", "Read"))
    assert main(["-m", f"sweep={path.stem}", "dry_run=true", f"store.path={tmp_path / 'S'}"]) == 0
    planned = int(capfd.readouterr().out.split(" planned")[0].split()[-1])
    assert planned > 8
    assert not (tmp_path / "S").exists()


def test_the_bug_sweep_trains_at_small_scale(tmp_path: Path) -> None:
    store = tmp_path / "S"
    assert main(["-m", "sweep=bug", *TINY, "seeds.order=0,1", f"store.path={store}"]) == 0
    runs = open_store(store).runs()
    # two order seeds, each uncoupled (however often the validation set is passed) and coupled in two ways
    assert len(runs) == 6 and runs["trajectory_id"].nunique() == 6
    assert runs["weights_hash"].nunique() == 6


def test_layer_transplants_write_a_full_design_with_replicates(tmp_path: Path) -> None:
    store = tmp_path / "S"
    assert layers(["--recipient", "0", "--donor", "1", *TINY, f"store.path={store}"]) == 0
    runs = open_store(store).runs()
    names = factors(arithmetic(compose(TINY)))
    assert names == [
        "token_embedding", "position_embedding", "blocks.0.attention", "blocks.0.mlp", "head", "final_norm"
    ]  # fmt: skip
    assert len(runs) == 2 * 2 ** len(names)
    assert runs["seed_init"].nunique() == runs["seed_order"].nunique() == runs["seed_split"].nunique() == 1
    # the final norm starts constant: exchanging it changes nothing
    by_layers = {(r.layers, r.seed_perturb): r.weights_hash for r in runs.itertuples()}
    for (text, replicate), weights in by_layers.items():
        swapped = json.loads(text)
        if "final_norm" in swapped:
            del swapped["final_norm"]
            without = json.dumps(swapped, sort_keys=True, separators=(",", ":"))
            assert by_layers[without, replicate] == weights
    assert runs["weights_hash"].nunique() == len(runs) / 2


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
        (["task.modulos=3"], "modulos"),
        (["--donor", "0"], "two different seeds"),
        (["seed=4"], "--recipient is the master seed"),
        (["quickstart"], "'quickstart' is no setting"),
    ],
)
def test_bad_input_is_refused_in_one_line(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert layers(["--recipient", "0", "--donor", "1", *TINY, *given]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and said in error
