"""Columns, types and rows; where they come from, what reads them, and the command that makes them again."""

import json
import math
import pickle
import shlex
import shutil
import socket
import subprocess
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

import grok
from grok.config import RunConfig, config_columns, identify, load_config
from grok.config.values import literal
from grok.errors import StoreError
from grok.records import CurvePoint, StepPoint
from grok.store import Row, open_store
from grok.store.provenance import Provenance, git_state, git_state_of, installed, overrides, rerun_command
from grok.store.rows import points_table, run_row, to_shard
from grok.store.schema import TABLES, conform, schema, to_table
from grok.store.writer import StoreWriter
from grok.streams import STREAMS
from tests.store.conftest import store_of
from tests.store.contract import MACHINE, example_row, example_rows

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
        assert run_row(replace(row, result=result, provenance=machine))["lane_width"] == expected


def test_not_a_number_is_null_and_infinity_stays() -> None:
    point = CurvePoint(step=200, val_loss=math.inf, block_norms={"head": math.nan, "embedding": 1.0})
    table = points_table("curves", [("a", [point])]).to_pylist()[0]
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


def parse(command: str) -> dict[str, Any]:
    """Return the nested settings that the shell and Hydra's parser make of a command."""
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "grok.run"]
    given: dict[str, Any] = {}
    for override in OverridesParser.create().parse_overrides(words[3:]):
        inner = given
        *groups, name = override.key_or_group.split(".")
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = override.value()
    return given


def rerun(config: RunConfig) -> RunConfig:
    return load_config(parse(rerun_command(config)))


def test_every_stream_is_pinned() -> None:
    config = load_config({"seed": 7, "seeds": {"init": 2**63 - 1, "layers": {"blocks.1": 3, "head.weight": 9}}})
    given = parse(rerun_command(config))["seeds"]
    assert {name: given[name] for name in ("split", "init", "order")} == {
        "split": config.stream_seeds().split,
        "init": 2**63 - 1,
        "order": config.stream_seeds().order,
    }
    assert given["layers"] == {"blocks.1": 3, "head.weight": 9}
    assert given.keys() == {*STREAMS, "layers"}


def test_what_only_concerns_the_first_command_is_left_out() -> None:
    config = load_config({"store": {"path": "/data/$HOME/x"}, "workers": 3, "force": True, "experiment": "quickstart"})
    words = ("store.path", "workers", "force", "experiment")
    assert not [word for word in words if word in rerun_command(config)]


def test_a_gpt_run_names_its_preset_and_every_setting_that_counts() -> None:
    config = load_config({"mode": "gpt", "experiment": "gpt/shakespeare_char", "data": {"path": "/data/a b/'c'"}})
    again = rerun(config)
    assert (again.mode, again.experiment) == ("gpt", "gpt/shakespeare_char")
    assert identify(again, "data") == identify(config, "data")


def test_a_command_has_one_length() -> None:
    train = {"epochs": 2, "steps": 7}
    words = overrides(load_config({"mode": "gpt", "experiment": "gpt/shakespeare_char", "train": train}))
    assert "train.steps=7" in words and not any(word.startswith("train.epochs") for word in words)


printable = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=30) | st.text("a\\${}'\"", max_size=8)
values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), printable)


@given(value=st.one_of(values, st.lists(values, max_size=4)))
@settings(max_examples=200, deadline=None)
def test_any_value_comes_back_through_hydra(value: Any) -> None:
    parsed = OverridesParser.create().parse_override(f"key={literal(value)}").value()
    found = OmegaConf.to_container(OmegaConf.create({"key": parsed}), resolve=True)["key"]  # type: ignore[index, call-overload]
    assert found == value
    assert type(found) is type(value)


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A package under version control; returns the package's folder."""
    package = tmp_path / "project" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package.parent / ".gitignore").write_text("/ignored/\n")
    git(package.parent, "init")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-m", "first")
    return package


def test_a_changed_or_an_untracked_file_makes_it_dirty(checkout: Path) -> None:
    new = checkout / "new.py"
    new.write_text("")
    assert git_state_of(checkout)[1] is True
    new.unlink()
    assert git_state_of(checkout)[1] is False
    (checkout / "__init__.py").write_text("changed")
    assert git_state_of(checkout)[1] is True


def test_ignored_files_and_stores_do_not_and_belong_to_no_commit(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = checkout.parent / "ignored" / "site-packages" / "package"
    inside.mkdir(parents=True)
    (inside / "__init__.py").write_text("")
    store_of(checkout.parent / "out" / "a store", [example_row(0)])
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))  # as in a hook
    commit, dirty = git_state_of(checkout)
    assert commit is not None and dirty is False
    (checkout.parent / "out" / "notes.txt").write_text("")
    assert git_state_of(checkout)[1] is True
    (tmp_path / "plain").mkdir()
    # a package installed inside somebody else's checkout is not theirs
    assert git_state_of(tmp_path / "plain") == git_state_of(inside) == (None, None)


def test_versions_and_machine() -> None:
    here = Provenance.collect()
    assert (here.host, here.torch_version) == (socket.gethostname(), version("torch"))
    assert installed("no-such-package-anywhere") is None


def test_a_package_that_is_replaced_in_mid_sweep_is_not_that_which_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for number in (1, 2):
        (tmp_path / f"made_up-{number}.dist-info").mkdir()
        (tmp_path / f"made_up-{number}.dist-info" / "METADATA").write_text(f"Name: made-up\nVersion: {number}\n")
        assert installed("made-up") == "1"
        if number == 1:
            shutil.rmtree(tmp_path / "made_up-1.dist-info")


def test_a_worker_says_what_code_it_runs_itself() -> None:
    planner = replace(Provenance.collect("s"), git_commit="0" * 40, git_dirty=None, grok_version="of the planner")
    worker, here = pickle.loads(pickle.dumps(planner)).on_this_machine(lane_width=16), git_state()
    assert (worker.git_commit, worker.git_dirty) == (here if here[0] else ("0" * 40, None))
    assert (worker.grok_version, worker.lane_width, worker.sweep_id) == (grok.__version__, 16, "s")


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
    path = tmp_path_factory.mktemp("readers") / "S"
    odd = example_row(2**63 - 1, settings={"seeds": {"order": 2**53 + 1}})
    with StoreWriter(path) as writer:
        for rows in (example_rows(range(5)), [diverged(5), odd], [gpt(1), gpt(2)]):
            writer.commit(rows)
    return path


def test_three_readers_of_the_bare_folders_agree(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grok.store.reader.TOGETHER", 2)  # of three shards
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
    for runs in (pd.read_parquet(store / "runs"), open_store(store).runs()):
        assert runs["seed"].max() == 2**63 - 1
        for name in ("seed", "seed_init", "steps", "grokked_step", "config.seeds.order", "branch_step", "config.lanes"):
            assert pd.api.types.is_integer_dtype(runs[name].dtype), name
        assert runs["config.seeds.order"].dropna().tolist() == [2**53 + 1]
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
