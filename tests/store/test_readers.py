"""Our reader, and pandas, DuckDB and Polars on the bare folders: the same numbers."""

import math
from dataclasses import replace
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pytest

from grok.errors import StoreError
from grok.records import StepPoint
from grok.store import Row, StoreWriter, open_store
from grok.store.contract import example_row, example_rows


def diverged(seed: int) -> Row:
    row = example_row(seed, status="diverged", stop_reason="not_finite", weights_hash=None)
    curve = [replace(p, val_loss=math.nan, train_loss=math.inf) if p.step == 200 else p for p in row.result.curve]
    return replace(row, result=replace(row.result, curve=curve))


def gpt(seed: int) -> Row:
    settings = {"mode": "gpt", "experiment": "gpt/shakespeare_char", "data": {"path": "/data"}}
    log = [StepPoint(step=k, grad_norm=1 / (k + 3), consumed_tokens=k * 2**40) for k in range(1, 30)]
    return example_row(seed, settings=settings, step_log=log)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both modes, several shards, a diverged run, seeds that no float can hold."""
    path = tmp_path_factory.mktemp("readers") / "S"
    odd = example_row(2**63 - 1, settings={"seeds": {"order": 2**53 + 1}})
    with StoreWriter(path) as writer:
        for rows in (example_rows(range(5)), [diverged(5), odd], [gpt(1), gpt(2)]):
            writer.commit(rows)
    return path


def test_three_readers_of_the_bare_folders_agree(store: Path) -> None:
    for kind, keys in (("runs", ["run_id"]), ("curves", ["run_id", "step"]), ("steps", ["run_id", "step"])):
        ours = getattr(open_store(store), kind)()
        by_pandas = pd.read_parquet(store / kind).sort_values(keys)
        by_duckdb = duckdb.sql(f"select * from '{store}/{kind}/*.parquet' order by {', '.join(keys)}").pl()
        by_polars = pl.read_parquet(store / kind / "*.parquet").sort(keys)
        assert len(ours) > 0
        assert by_duckdb.equals(by_polars)
        assert list(by_pandas.columns) == by_polars.columns == list(ours.columns)
        for name in by_polars.columns:
            one, other = by_polars[name].to_list(), ours[name].tolist()
            assert one == [None if pd.isna(value) else value for value in other], name
            assert one == [None if pd.isna(value) else value for value in by_pandas[name].tolist()], name


def test_integers_stay_integers(store: Path) -> None:
    for runs in (open_store(store).runs(), pd.read_parquet(store / "runs")):
        assert runs["seed"].max() == 2**63 - 1
        for name in ("seed", "seed_init", "steps", "grokked_step", "config.seeds.order", "branch_step", "config.lanes"):
            assert pd.api.types.is_integer_dtype(runs[name].dtype), name
        assert runs["config.seeds.order"].dropna().tolist() == [2**53 + 1]
    runs = open_store(store).runs()
    assert pd.api.types.is_bool_dtype(runs["git_dirty"].dtype)
    assert open_store(store).curves()["step"].dtype == "int64"


def test_some_runs_and_some_columns(store: Path) -> None:
    opened = open_store(store)
    some = sorted(opened.run_ids())[2:4]
    frame = opened.curves(some, ["val_acc"])
    assert list(frame.columns) == ["run_id", "step", "val_acc"]
    assert sorted(set(frame["run_id"])) == some
    assert opened.curves([]).empty
    assert list(opened.steps(columns=["grad_norm"]).columns) == ["run_id", "step", "grad_norm"]
    whole = opened.curves()
    assert frame["val_acc"].tolist() == whole[whole["run_id"].isin(some)]["val_acc"].tolist()
    with pytest.raises(StoreError, match="curves has no column 'val_los', did you mean 'val_loss'"):
        opened.curves(columns=["val_los"])


def test_statuses_and_a_run_by_prefix(store: Path) -> None:
    opened = open_store(store)
    assert len(opened.run_ids()) == 9
    (lost,) = opened.run_ids("diverged")
    assert opened.statuses()[lost] == "diverged"
    row = opened.run(lost[:12])
    assert (row["run_id"], row["seed"]) == (lost, 5)
    with pytest.raises(StoreError, match="9 runs begin with"):
        opened.run("")
    with pytest.raises(StoreError, match=r"no run in .* begins with 'zz'"):
        opened.run("zz")
    digits = [r[0] for r in opened.run_ids()]
    common = max(digits, key=digits.count)
    with pytest.raises(StoreError, match=f"runs begin with '{common}' .*give more characters"):
        opened.run(common)
