"""Columns, types, and rows made of results."""

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grok.config import config_columns
from grok.errors import StoreError
from grok.records import CurvePoint, StepPoint
from grok.store.contract import MACHINE, example_row, example_rows
from grok.store.rows import curves_table, run_row, to_shard
from grok.store.schema import TABLES, conform, schema, to_table

RUNS = """
run_id trajectory_id config_id parent_run_id branch_step mode seed seed_split seed_init seed_order replicate status
stop_reason error steps train_loss train_acc val_loss val_acc weight_norm weight_norm_all weights_hash memorised_step
grokked_step val_loss_peak_step weight_norm_peak_step seconds host device numerics git_commit git_dirty torch_version
started_at
"""
CURVES = "run_id step train_loss train_acc val_loss val_acc weight_norm lr"
STEPS = "run_id step train_loss lr grad_norm"
DESIGNS = """
design_id kind run_id role unit parent_run_id donor_run_id redrawn choice choice_detail from_step line origin
results_seen planned_at retired
"""
CONTRACT = {"runs": RUNS.split(), "curves": CURVES.split(), "steps": STEPS.split(), "designs": DESIGNS.split()}


@pytest.mark.parametrize("kind", TABLES)
def test_the_contract_columns_come_first_in_their_order(kind: str) -> None:
    assert schema(kind).names[: len(CONTRACT[kind])] == CONTRACT[kind]


def test_every_setting_of_every_mode_is_a_column() -> None:
    columns = [name for name in schema("runs").names if name.startswith("config.")]
    assert columns == [f"config.{name}" for name in config_columns()]
    types = {name: str(schema("runs").field(f"config.{name}").type) for name in config_columns()}
    assert types["seeds.split"] == "int64"
    assert types["optim.betas"] == types["seeds.layers"] == "string"
    assert types["optim.lr"] == "double"
    assert types["model.bias"] == "bool"


def test_the_width_that_a_device_chose_is_in_the_row() -> None:
    row = example_row(0)
    for chosen, asked, expected in ((264, None, 264), (264, 8, 264), (None, 8, 8), (None, None, None)):
        result, machine = replace(row.result, lane_width=chosen), replace(MACHINE, lane_width=asked)
        assert run_row(result, row.config, row.identity, machine)["lane_width"] == expected


def test_not_a_number_is_null_and_infinity_stays() -> None:
    row = example_row(0)
    point = CurvePoint(step=200, val_loss=math.inf, block_norms={"head": math.nan, "embedding": 1.0})
    table = curves_table([replace(row.result, curve=[point])]).to_pylist()[0]
    assert table["train_loss"] is None
    assert table["val_loss"] == math.inf
    assert json.loads(table["block_norms"]) == {"head": None, "embedding": 1.0}


def test_what_an_engine_must_not_say_is_refused_with_the_run_named() -> None:
    row = example_row(0)
    twice = replace(row, result=replace(row.result, curve=[*row.result.curve, row.result.curve[-1]]))
    with pytest.raises(StoreError, match=f"{row.result.run_id}.*step 200 twice"):
        to_shard([twice])
    with pytest.raises(StoreError, match="status 'done', expected one of completed"):
        to_shard([replace(row, result=replace(row.result, status="done"))])


def test_an_error_message_of_any_bytes_can_be_stored() -> None:
    row = example_row(0, status="failed", error="caf\udce9 <b>\x00")
    assert to_shard([row]).runs["error"].to_pylist() == ["caf\\udce9 <b>\x00"]


def test_a_missing_needed_value_is_refused() -> None:
    columns = {name: [None] for name in schema("curves").names}
    with pytest.raises(StoreError, match="column run_id of curves has no value in 1 rows"):
        to_table("curves", columns)


def test_a_setting_added_later_gets_its_neutral_value_in_its_mode_only() -> None:
    full = to_shard(example_rows(range(2))).runs
    older = full.drop_columns(["config.task.label_noise", "config.model.heads", "lane_width"])
    filled = conform("runs", older)
    assert filled.schema.equals(full.schema)
    assert filled["config.task.label_noise"].to_pylist() == [0.0, 0.0]
    assert filled["config.model.heads"].null_count == 2  # no neutral value is declared: nobody knows
    gpt = older.set_column(older.column_names.index("mode"), "mode", pa.array(["gpt", "gpt"]))
    assert conform("runs", gpt)["config.task.label_noise"].null_count == 2


finite = st.floats(allow_nan=True, allow_infinity=True, width=64)


@given(values=st.lists(finite, min_size=1, max_size=5), step=st.integers(0, 2**62))
@settings(max_examples=50, deadline=None)
def test_every_float_comes_back_bit_by_bit(values: list[float], step: int) -> None:
    result = example_row(0).result
    curve = [CurvePoint(step=step + i, val_loss=value, lr=value) for i, value in enumerate(values)]
    log = [StepPoint(step=step + i, grad_norm=value) for i, value in enumerate(values)]
    shard = to_shard([replace(example_row(0), result=replace(result, curve=curve, step_log=log))])
    wanted = np.array(values)
    for column in (shard.curves["val_loss"], shard.curves["lr"], shard.steps["grad_norm"]):
        found = column.to_numpy()
        same = found.view(np.int64) == wanted.view(np.int64)
        assert (same | (np.isnan(found) & np.isnan(wanted))).all()
