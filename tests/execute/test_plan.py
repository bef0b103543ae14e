"""What is planned, what is skipped, and how runs are grouped."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grok.config import ArithmeticConfig, load_config
from grok.errors import ConfigError
from grok.execute import execute, refusals
from grok.execute.estimate import bytes_per_worker, seconds_to_train
from grok.execute.groups import LARGEST, PlannedRun, lane_groups, prepare_runs
from grok.execute.plan import Plan, StoredRuns, WorkerPool, design_of_sweep, make_plan, shared_settings, with_replicates
from grok.processes import memory_limit
from grok.records import CurvePoint, RunResult
from grok.store import Provenance, Row, Store, StoreWriter, open_store
from tests.execute.conftest import tiny

PLANNED = prepare_runs([tiny(seed) for seed in range(300)])


def stored(
    path: Path,
    runs: list[PlannedRun],
    status: str = "completed",
    seconds: float = 2.0,
    device: str = "cpu",
    lanes: int | None = None,
) -> Store:
    rows = []
    for run in runs:
        result = RunResult(
            run_id=run.run_id, status=status, stop_reason="steps", steps=6, seconds=seconds, curve=[CurvePoint(step=6)],
            device=device, lane_width=lanes,
        )  # fmt: skip
        rows.append(Row(result, run.config, run.identity, Provenance.collect()))
    with StoreWriter(path) as writer:
        writer.commit(rows)
    return open_store(path)


def write_design(store: Store, plan: Plan) -> None:
    """Write the design of a plan as the command does before it trains."""
    design = with_replicates(design_of_sweep(plan.runs, StoredRuns(store), "given"), plan.runs)
    with StoreWriter(store.layout.root) as writer:
        writer.record_design(design.named(plan.requested))


def test_a_plan_is_what_is_asked_for_minus_duplicates_minus_stored(tmp_path: Path) -> None:
    store = stored(tmp_path / "S", PLANNED[:3])
    plan = make_plan([*PLANNED[:5], PLANNED[4], PLANNED[0]], store)
    assert plan.summary() == "7 planned, 3 stored, 2 duplicates, 2 to train"
    assert [run.config.seed for run in plan.to_train] == [3, 4]
    assert len(plan.requested) == 7


def test_failed_runs_are_tried_again_only_when_asked(tmp_path: Path) -> None:
    store = stored(tmp_path / "S", PLANNED[:2], status="failed")
    assert make_plan(PLANNED[:2], store).summary() == "2 planned, 2 stored (2 failed), 0 duplicates, 0 to train"
    store = stored(tmp_path / "S", PLANNED[2:3])
    again = prepare_runs([tiny(seed, retry_failed=True) for seed in range(3)])
    assert [run.config.seed for run in make_plan(again, store).to_train] == [0, 1]


@pytest.mark.parametrize(
    ("keep_every", "metrics", "extends"), [(3, ["circuit"], False), (3, [], True), (0, ["circuit"], True)]
)
def test_no_run_goes_on_from_another_one_without_the_weights_that_it_must_measure(
    tmp_path: Path, keep_every: int, metrics: list[str], extends: bool
) -> None:
    """Those up to the shorter run's end are in that one's folder."""
    settings_of_both: dict[str, Any] = {
        "save": "final",
        "checkpoint": {"keep": True, "keep_every": keep_every},
        "eval": {"metrics": metrics},
    }
    short, long = prepare_runs([tiny(0, train={"steps": steps}, **settings_of_both) for steps in (6, 12)])
    store = stored(tmp_path / "S", [short])
    (tmp_path / "S" / "checkpoints" / short.run_id / "00000001-step-6").mkdir(parents=True)
    (planned,) = make_plan([long], store).to_train
    assert planned.extends == (short.run_id if extends else None)


def test_an_interrupted_forced_command_goes_on_with_its_own_replicates(tmp_path: Path) -> None:
    asked = prepare_runs([tiny(seed, force=True) for seed in range(3)])
    stored(tmp_path / "S", prepare_runs([tiny(seed) for seed in range(3)]))
    store = open_store(tmp_path / "S")
    first = make_plan(asked, store)
    assert [run.config.replicate for run in first.to_train] == [1, 1, 1]
    write_design(store, first)
    store = stored(tmp_path / "S", list(first.to_train[:2]))
    again = make_plan(asked, store)
    assert again.requested == first.requested and len(again.stored) == 2
    assert [run.run_id for run in again.to_train] == [first.requested[2]]
    assert make_plan(asked[:2], store).requested != first.requested[:2], "other runs are another command"
    store = stored(tmp_path / "S", list(again.to_train))
    assert [run.config.replicate for run in make_plan(asked, store).to_train] == [2, 2, 2]


def test_a_clock_that_jumped_does_not_begin_a_forced_command_anew(tmp_path: Path) -> None:
    asked = prepare_runs([tiny(seed, force=True) for seed in range(2)])
    store = stored(tmp_path / "S", prepare_runs([tiny(seed) for seed in range(2)]))
    first = make_plan(asked, store)
    store = stored(tmp_path / "S", list(first.to_train))
    second = make_plan(asked, store)
    for plan in (second, first):
        write_design(store, plan)
    store = stored(tmp_path / "S", list(second.to_train[:1]))
    assert [run.run_id for run in make_plan(asked, store).to_train] == [second.requested[1]]


@pytest.mark.parametrize("name, values", [("workers", (1, 2)), ("device", ("cpu", "auto")), ("force", (True, False))])
def test_settings_of_the_command_have_one_value(name: str, values: tuple[object, object]) -> None:
    with pytest.raises(ConfigError, match=f"{name} differs"):
        shared_settings([tiny(i, **{name: value}) for i, value in enumerate(values)])


@pytest.mark.parametrize(
    ("device", "gpus", "second", "said"),
    [
        ("cpu", 1, {"precision": "tf32"}, "precision=tf32 needs a GPU"),
        ("auto", 0, {"precision": "tf32"}, "precision=tf32 needs a GPU"),
        (
            "cuda",
            1,
            {
                "optim": {"grokfast": "ma"},
                "eval": {"metrics": ["circuit"]},
                "checkpoint": {"keep_every": 9},
                "save": "final",
            },
            r"optim\.grokfast=ma, eval\.metrics=\[circuit\] of kept weights",
        ),
    ],
)
def test_what_a_device_lacks_is_refused_for_every_run(
    monkeypatch: pytest.MonkeyPatch, device: str, gpus: int, second: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(refusals, "visible_gpus", lambda: gpus)
    runs = prepare_runs([tiny(0, device=device), tiny(0, device=device, **second)])
    with pytest.raises(ConfigError, match=said):
        refusals.refuse_impossible(runs[0].config, runs, None)
    refusals.refuse_impossible(runs[0].config, runs[:1], None)


@settings(deadline=None)
@given(count=st.integers(0, 300), workers=st.integers(1, 20), lanes=st.integers(1, 80), gpu=st.booleans())
def test_groups_hold_every_run_once_in_order_and_shrink(count: int, workers: int, lanes: int, gpu: bool) -> None:
    groups = lane_groups(PLANNED[:count], workers=workers, lanes=lanes, gpu=gpu)
    assert [run for group in groups for run in group.runs] == PLANNED[:count]
    sizes = [len(group.runs) for group in groups]
    assert all(a >= b for a, b in pairwise(sizes))
    assert gpu or all(size <= max(LARGEST, lanes) for size in sizes)
    if count >= workers * lanes:
        assert len(groups) >= workers, "no worker stays idle"


def test_runs_of_one_group_share_a_program() -> None:
    varied = [
        tiny(0), tiny(1, optim={"lr": 0.1}), tiny(2, optim={"weight_decay": 0.0}), tiny(3, train={"steps": 9}),
        tiny(8, perturb={"ulps": 1}), tiny(4, model={"d_model": 16}),
        tiny(5, task={"modulus": 5}), tiny(6, numerics={"path": "plain"}),
        tiny(7, precision="float64"),
    ]  # fmt: skip
    groups = lane_groups(prepare_runs(varied), workers=1, lanes=8)
    assert [[run.config.seed for run in group.runs] for group in groups] == [[0, 1, 2, 3, 8], [4], [5], [6], [7]]


def test_time_is_measured_where_the_store_knows_such_runs(tmp_path: Path) -> None:
    store = stored(tmp_path / "S", PLANNED[:3], seconds=10.0)
    assert seconds_to_train(PLANNED[3:9], store, workers=2) == pytest.approx(30.0)
    assert seconds_to_train(PLANNED[3:4], store, workers=2) == pytest.approx(10.0)


def test_time_on_a_gpu_is_not_that_on_a_processor(tmp_path: Path) -> None:
    mixed = stored(tmp_path / "S", PLANNED[:3], seconds=10.0)
    assert seconds_to_train(PLANNED[3:9], mixed, workers=1, gpu=True) is None, "no processor says it"
    mixed = stored(tmp_path / "S", PLANNED[3:23], seconds=0.5, device="cuda", lanes=8)
    assert seconds_to_train(PLANNED[40:43], mixed, workers=1) == pytest.approx(30.0)
    twenty = PLANNED[100:120]
    assert seconds_to_train(twenty, mixed, workers=1, gpu=True) == pytest.approx(10.0)
    assert seconds_to_train(twenty[:3], mixed, workers=1, gpu=True) == pytest.approx(4.0), "eight lanes, most idle"
    other = [prepare_runs([tiny(seed, model={"d_model": 16})])[0] for seed in range(5)]
    wide = stored(tmp_path / "S", other[:3], seconds=2.0, device="cuda", lanes=8)
    assert seconds_to_train(other[3:], wide, workers=1, gpu=True) == pytest.approx(6.0), "three runs had the stack"
    both = [*twenty[:3], *other[3:]]
    assert seconds_to_train(both, wide, workers=1, gpu=True) == pytest.approx(10.0), "two programs, two stacks"


@pytest.mark.parametrize(
    ("over", "measured"),
    [
        ({}, 1066),
        ({"model": {"d_model": 64, "d_ff": 256}}, 776),
        ({"model": {"d_model": 256, "d_ff": 1024}}, 1627),
        ({"task": {"modulus": 59}}, 785),
        ({"task": {"modulus": 97}}, 859),
        ({"model": {"layers": 1}}, 729),
        ({"train": {"batch_size": 128}}, 1047),
    ],
)
def test_memory_is_about_what_the_benchmark_measures(over: dict[str, Any], measured: int) -> None:
    """MiB of a process, from the page of 2026-11-21 under results/benchmarks/."""
    runs = prepare_runs([load_config({"mode": "arithmetic", **over})])
    assert bytes_per_worker(runs, 1) / 2**20 == pytest.approx(measured, rel=0.15)


def test_workers_are_as_many_as_cores_and_memory_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = prepare_runs([ArithmeticConfig(seed=s) for s in range(100)])
    shared = ArithmeticConfig(device="cpu")
    monkeypatch.setattr("grok.execute.plan.usable_cores", lambda: 64)
    each = bytes_per_worker(runs, 1)
    for memory, workers in ((100 * each, 64), (13.9 * each, 13), (0.5 * each, 1)):
        monkeypatch.setattr("grok.execute.plan.usable_memory", lambda memory=memory: int(memory))
        force = WorkerPool.of(shared, runs)
        assert force.workers == workers
    asked = ArithmeticConfig(device="cpu", workers=8)
    assert WorkerPool.of(asked, runs).workers == 8, "who says so gets them"
    elsewhere = ArithmeticConfig(device="cpu", executor="slurm")
    assert WorkerPool.of(elsewhere, runs).workers == 64, "other machines have memory of their own"


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/jobs/7\n", {"jobs/7/memory.max": "max", "jobs/memory.max": "3000", "memory.max": "5000"}, 3000),
        ("0::/\n", {"memory.max": "max"}, None),
        (
            "5:cpu,memory:/docker/ab\n4:pids:/x\n",
            {"memory/memory.limit_in_bytes": "700", "x/memory.limit_in_bytes": "1"},
            700,
        ),
        ("0::/\n", {}, None),
    ],
)
def test_the_memory_that_control_groups_allow(
    groups: str, files: dict[str, str], limit: int | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(text + "\n")
    (tmp_path / "cgroup").write_text(groups)
    assert memory_limit(tmp_path / "cgroup", tmp_path / "root") == limit
    assert memory_limit(tmp_path / "nowhere", tmp_path / "root") is None


def test_a_command_is_recorded_where_it_trains_or_plans_something_new(tmp_path: Path) -> None:
    store = tmp_path / "S"

    def records() -> list[list[str]]:
        return sorted(json.loads(path.read_text())["argv"] for path in (store / "sweeps").glob("*.json"))

    def asked(argv: list[str], *seeds: int, **settings: Any) -> None:
        configs = [tiny(seed, executor="inline", store={"path": str(store)}, **settings) for seed in seeds]
        assert execute(configs, argv=argv).exit_status == 0

    asked(["first"], 1, 2)
    asked(["first"], 1, 2)
    assert records() == [["first"]]
    asked(["second"], 2)
    asked(["second"], 2)
    asked(["the same runs"], 2, 1)
    assert records() == [["first"], ["second"]]
    asked(["forced"], 1, force=True)
    assert records() == [["first"], ["forced"], ["second"]]
