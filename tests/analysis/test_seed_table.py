"""Every run is listed with its seeds, whatever was scanned, and the page's table says the same in fewer columns."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.answers import compile_report
from analysis.observations import Observations
from analysis.proposals import rerun_command, rerun_commands
from analysis.studies import ask, seeds
from analysis.studies.regimes import ORDERS
from analysis.writing import write_report
from grok.config import identify, load_config
from grok.records import CurvePoint, RunResult
from grok.store import Row, StoreWriter, open_store
from grok.store.contract import failed
from grok.store.provenance import rerun_command as full_command
from grok.streams import STREAMS, derive_seed
from tests.analysis.simulate import MACHINE, Truth, census, row, simulate, write

RNG = np.random.default_rng


def language_model(seed: int) -> Row:
    settings = {"mode": "gpt", "experiment": "gpt/shakespeare_char", "seed": seed, "data": {"path": "d"}}
    config = load_config({**settings, "train": {"steps": 20}})
    identity = identify(config, "data")
    result = RunResult(run_id=identity.run_id, status="completed", stop_reason="steps", steps=20, numerics="cpu")
    result.curve = [CurvePoint(step=20, val_loss=2.5, train_loss=2.4)]
    return Row(result, config, identity, MACHINE, "data")


def test_the_table_agrees_with_the_census() -> None:
    observations = simulate(census(60, RNG(1), steps=12_000))
    table, study = seeds.seed_table(observations).set_index("run_id"), ask("census", observations)
    assert len(table) == 60
    assert table.loc[study.rows.index, "class_accuracy"].tolist() == study.rows["label"].tolist()
    assert (table["judged_at_step"] == study.horizon).all()
    supers = set(study.rows.index[study.by_time.is_early])
    assert set(table.index[table["class_time"] == "early"]) == supers and supers
    assert set(table["regime"]) <= {*ORDERS, "not yet"}


def test_each_population_is_judged_by_its_own_median_whatever_its_runs_were_lengthened_to() -> None:
    """A census around step 6,000 and a scan at a fast order around 900: no seed of the scan is early for that."""
    rng = RNG(4)
    census_runs = [
        Truth({"seed": i, "train.steps": 20_000}, 6000 * float(np.exp(rng.normal(0, 0.1)))) for i in range(30)
    ]
    scan = [
        Truth(
            {"seed": 4, "seeds.order": 8, "seeds.init": i, "train.steps": 20_000 if i < 12 else 3000},
            900 * float(np.exp(rng.normal(0, 0.1))),
        )
        for i in range(30)
    ]
    table = seeds.seed_table(simulate(census_runs + scan))
    assert set(table["class_time"]) <= {"late", "not within 20,000 steps", "not within 3,000 steps"}
    assert table["condition"].nunique() == 2, "the budget is told"
    scanned = table[table["seed_order"] == 8]
    assert (scanned["judged_at_step"] == 3000).all() and set(scanned["class_accuracy"]) <= {"super", "fast"}


def test_conditions_name_every_value_the_default_too() -> None:
    runs = census(3, RNG(1)) + census(3, RNG(2), optim__weight_decay=0.0)
    table = seeds.seed_table(simulate(runs))
    assert table["condition"].value_counts().to_dict() == {"optim.weight_decay=0": 3, "optim.weight_decay=0.1": 3}
    assert set(seeds.seed_table(simulate(census(3, RNG(1))))["condition"]) == {"default"}
    other = seeds.seed_table(simulate(census(3, RNG(1), task__modulus=97)))
    assert set(other["condition"]) == {"task.modulus=97"}
    assert other["class_accuracy"].isna().all(), "the diary's classes belong to its task"


def test_every_run_of_a_mixed_store_is_in_the_file(tmp_path: Path) -> None:
    store = write(census(6, RNG(3)), tmp_path / "S")
    with StoreWriter(store) as writer:
        writer.commit([failed(row(Truth({"seed": 77}, 100.0))), language_model(1), language_model(2)])
    page = write_report(compile_report(Observations.read(store)), tmp_path / "out")
    table = pd.read_csv(page.parent / "seeds.csv")
    assert set(table["run_id"]) == open_store(store).run_ids()
    assert table["status"].value_counts().to_dict() == {"completed": 8, "failed": 1}
    assert table.loc[table["mode"] == "gpt", ["class_accuracy", "regime"]].isna().all(axis=None)
    assert table.loc[table["status"] == "failed", "class_accuracy"].isna().all()
    assert (table["seed_init"] == [derive_seed(s, "init") for s in table["seed"]]).all(), "no seed went through a float"
    assert table["rerun"].str.startswith("python -m grok.run").all()
    assert "Every seed" in page.read_text(encoding="utf-8")


def test_short_commands_leave_out_what_the_master_seed_gives() -> None:
    configs = [
        load_config({"seed": 3}),
        load_config({"seed": 3, "seeds": {"order": 8, "layers": {"head": 5}}}),
        load_config({"seed": 9, "task": {"operation": "x/y if y odd else x-y"}, "model": {"init_scale": 0.5}}),
    ]
    runs = pd.DataFrame({"rerun": [full_command(c) for c in configs], "seed": [c.seed for c in configs]})
    for config, command in zip(configs, rerun_commands(runs), strict=True):
        derived = {f"seeds.{s}={derive_seed(config.seed, s)}" for s in STREAMS}
        words = shlex.split(full_command(config))
        assert shlex.split(command) == [word for word in words if word not in derived]
    assert rerun_command(runs.iloc[0]) == "python -m grok.run seed=3"
