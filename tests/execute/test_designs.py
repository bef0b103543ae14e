"""What each command says that its runs are for: the rows of its design against the truth."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import grok
from grok.analysis.observations import Observations
from grok.analysis.studies import fate
from grok.commands.compose import arithmetic, compose
from grok.config import ArithmeticConfig, GptConfig, identify
from grok.config.gpt import TrainConfig as GptTrain
from grok.errors import ConfigError
from grok.execute import execute
from grok.execute.groups import PlannedRun, prepare_runs
from grok.execute.plan import StoredRuns, design_of_sweep, make_plan, with_replicates
from grok.records import RunResult
from grok.run import main as run
from grok.store import Provenance, Row, StoreWriter, open_store
from grok.sweeps import branch, layers, repeat
from grok.sweeps.choosing import eligible, selecting
from tests.doors.conftest import TINY as SETTINGS
from tests.execute.conftest import tiny
from tests.store.contract import example_design

TINY = [*SETTINGS, "executor=inline"]


def rows(store: Path) -> pd.DataFrame:
    """Return the rows of a store's designs, with their JSON read; every key is there once."""
    found = open_store(store).designs()
    assert not found.duplicated(["design_id", "run_id", "role", "unit"]).any()
    for name in ("unit", "redrawn", "choice_detail"):
        found[name] = [None if pd.isna(text) else json.loads(text) for text in found[name]]
    return found


def new_rows(store: Path, command: Callable[[], Any]) -> pd.DataFrame:
    """Return the rows that a command adds; given again, it adds none."""
    before = set(open_store(store).designs()["design_id"]) if (store / "store.json").exists() else set()
    command()
    after = rows(store)
    command()
    assert len(rows(store)) == len(after)
    return after[~after["design_id"].isin(before)]


def sweep(store: Path, *words: str) -> Callable[[], Any]:
    return lambda: _passes(run(["-m", *TINY, *words, f"store.path={store}"]))


def _passes(status: int) -> None:
    assert status == 0


def candidates(store: Path, config: ArithmeticConfig) -> pd.DataFrame:
    found = eligible(open_store(store), config, selecting(config, ["train.steps=6"]))
    return found[found["member"]]


def units(found: pd.DataFrame, role: str) -> list[dict[str, Any]]:
    return list(found["unit"][found["role"] == role])


def test_a_census_is_its_seeds_as_they_were_asked_for(tmp_path: Path) -> None:
    store = tmp_path / "S"
    _passes(run(["-m", *TINY, "seed=0,1", f"store.path={store}", "dry_run=true"]))
    assert not store.exists(), "a dry run writes nothing"
    first = new_rows(store, sweep(store, "seed=range(0,3)"))
    assert (first["kind"] == "sweep").all() and (first["role"] == "member").all() and (first["choice"] == "given").all()
    assert sorted(unit["seed"] for unit in units(first, "member")) == [0, 1, 2]
    assert not first["results_seen"].any() and first["parent_run_id"].isna().all() and first["design_id"].nunique() == 1
    assert set(first["run_id"]) == set(open_store(store).runs()["run_id"])
    both = new_rows(store, sweep(store, "seed=range(1,5)"))
    seen = {row["unit"]["seed"]: row["results_seen"] for _, row in both.iterrows()}
    assert seen == {1: True, 2: True, 3: False, 4: False}
    again = new_rows(store, lambda: grok.sweep(*TINY, seed=range(3), store=str(store)))
    assert again.empty, "the same plan from Python is the same design"
    one = new_rows(store, lambda: grok.run(*TINY, seed=9, store=str(store)))
    assert units(one, "member") == [{"seed": 9}]


def test_a_scan_names_the_stream_and_its_master_seed(tmp_path: Path) -> None:
    found = new_rows(tmp_path / "S", sweep(tmp_path / "S", "seeds.init=range(0,3)"))
    assert (found["kind"] == "sweep").all()
    assert sorted(unit["init"] for unit in units(found, "member")) == [0, 1, 2]
    assert all(unit["seed"] == 0 for unit in units(found, "member"))
    layer = new_rows(tmp_path / "S", sweep(tmp_path / "S", "++seeds.layers={head:5}"))
    assert units(layer, "member") == [{"seed": 0, "layers.head": 5}]


def test_two_swept_streams_are_a_crossed_design(tmp_path: Path) -> None:
    store = tmp_path / "S"
    words = ("seeds.split=0,1", "seeds.init=0,1", "perturb.ulps=1", "seeds.perturb=0,1")
    found = new_rows(store, sweep(store, *words))
    assert (found["kind"] == "crossed").all() and (found["role"] == "cell").all() and len(found) == 8
    assert {(unit["split"], unit["init"], unit["repeat"]) for unit in units(found, "cell")} == {
        (split, init, repeat) for split in (0, 1) for init in (0, 1) for repeat in (0, 1)
    }
    order = open_store(store).runs()["seed_order"].iloc[0]
    assert {unit["order"] for unit in units(found, "cell")} == {order}


def test_perturbed_runs_repeat_the_unperturbed_one(tmp_path: Path) -> None:
    store = tmp_path / "S"
    words = ("seed=0,1", "perturb.ulps=1", "seeds.perturb=0,1")
    found = new_rows(store, sweep(store, *words))
    assert (found["kind"] == "repeat").all() and found["parent_run_id"].isna().all()
    assert {(unit["kind"], unit["seed"], unit["repeat"]) for unit in units(found, "child")} == {
        ("ulp", seed, repeat) for seed in (0, 1) for repeat in (0, 1)
    }
    assert all(redrawn == [] for redrawn in found["redrawn"])
    sweep(store, "seed=0,1")()
    assert new_rows(store, sweep(store, *words)).empty, "the parent is stored by now, and the design is the same"
    further = new_rows(store, sweep(store, "seed=0", "perturb.ulps=1", "seeds.perturb=7"))
    plain = open_store(store).runs().query("`config.perturb.ulps` == 0 and seed == 0")["run_id"].iloc[0]
    assert list(further["parent_run_id"]) == [plain]
    planned = new_rows(store, sweep(store, "seed=5", "perturb.ulps=0,1"))
    (child,) = planned[planned["role"] == "child"].to_dict("records")
    (member,) = planned[planned["role"] == "member"].to_dict("records")
    assert child["parent_run_id"] == member["run_id"], "planned together"


def test_longer_runs_extend_and_are_seen_and_stay_what_they_were(tmp_path: Path) -> None:
    store = tmp_path / "S"
    words = ("seed=range(0,3)",)
    sweep(store, *words)()
    longer = new_rows(store, sweep(store, *words, "train.steps=12"))
    assert (longer["kind"] == "extend").all() and (longer["role"] == "member").all() and longer["results_seen"].all()
    mixed = new_rows(store, sweep(store, "seed=range(2,5)", "train.steps=12"))
    assert (mixed["kind"] == "sweep").all() and mixed["results_seen"].sum() == 1
    other = tmp_path / "T"
    sweep(other, *words, "train.steps=12")()
    sweep(other, *words)()
    again = new_rows(other, sweep(other, *words, "train.steps=12"))
    assert again.empty, "what was a sweep first is one for good"


def test_a_schedule_that_looks_at_the_length_does_not_hide_a_result() -> None:
    configs = [GptConfig(seed=seed, train=GptTrain(steps=steps)) for seed, steps in ((0, 100), (0, 200), (1, 200))]
    assert not configs[0].length_is_free()
    short, long, other = (PlannedRun(config, identify(config, "data"), "data") for config in configs)
    stored = StoredRuns(None)
    stored.add({
        "run_id": short.run_id, "trajectory_id": short.identity.trajectory_id, "status": "completed", "replicate": 0,
        "config.train.steps": 100,
    })  # fmt: skip
    assert stored.has_results_of(long) and not stored.has_results_of(other)


def test_failed_runs_are_no_results(tmp_path: Path) -> None:
    (run_of_4,) = prepare_runs([tiny(4)])
    failed = RunResult(run_id=run_of_4.run_id, status="failed", stop_reason="exception", steps=0)
    with StoreWriter(tmp_path / "S") as writer:
        writer.commit([Row(failed, run_of_4.config, run_of_4.identity, Provenance.collect())])
    stored = StoredRuns(open_store(tmp_path / "S"))
    assert not stored.has_results_of(run_of_4) and not stored.run_ids


def test_runs_from_python_are_unstated_until_somebody_says(tmp_path: Path) -> None:
    store = tmp_path / "S"
    configs = [tiny(seed, executor="inline", store={"path": str(store)}) for seed in range(2)]
    found = new_rows(store, lambda: execute(configs))
    assert (found["choice"] == "unstated").all() and (found["kind"] == "sweep").all()
    assert sorted(unit["seed"] for unit in units(found, "member")) == [0, 1]
    drawn = new_rows(store, lambda: execute(configs, design="drawn"))
    assert (drawn["choice"] == "drawn").all() and drawn["results_seen"].all()


def test_replicates_of_force_repeat_what_was_asked_for(tmp_path: Path) -> None:
    store = tmp_path / "S"
    sweep(store, "seed=0,1")()
    before = set(rows(store)["design_id"])
    plain = set(open_store(store).run_ids())
    sweep(store, "seed=0,1", "force=true")()
    found = rows(store)
    found = found[~found["design_id"].isin(before)]
    assert set(found["parent_run_id"]) == plain and found["results_seen"].all()
    assert {(unit["kind"], unit["seed"], unit["repeat"]) for unit in units(found, "child")} == {
        ("again", 0, 1),
        ("again", 1, 1),
    }
    sweep(store, "seed=0,1", "force=true")()
    assert sorted(open_store(store).runs()["replicate"]) == [0, 0, 1, 1, 2, 2]


def test_an_interrupted_forced_branch_goes_on_with_its_own_replicates(census: Path) -> None:
    argv = ["--store", str(census), "--best", "1", "--random", "0", "--at", "3", "--times", "2", "--redraw", "order"]
    branch.main([*argv, *TINY])
    forced = branch.planned([*argv, *TINY, "force=true"])
    plan = make_plan(prepare_runs(forced), open_store(census))
    with StoreWriter(census) as writer:  # planned, and one of two runs trained
        purposes = with_replicates(forced.design, plan.runs)
        writer.record_design(purposes.named(plan.requested), plan.found.run_ids)
    execute([replace(plan.runs[0].config, force=False)])
    execute(forced)
    assert sorted(open_store(census).runs().query("replicate > 0")["run_id"]) == sorted(plan.requested)
    children = rows(census).query("role == 'child'")
    assert all(detail["by"] == "val_loss" for detail in children["choice_detail"]), "how it was chosen stays"


def test_switched_runs_are_no_cells_and_no_candidates(census: Path) -> None:
    crossed = ("seeds.init=1,2", "seeds.order=3,4")
    found = new_rows(census, sweep(census, *crossed, "switch.step=3", "switch.order=7,8"))
    assert set(found["role"]) == {"child"} and set(found["from_step"]) == {3} and len(found) == 8
    settings = compose([*TINY, f"store.path={census}"])
    cells = [arithmetic(settings, seeds__init=i, seeds__order=o) for i in (1, 2) for o in (3, 4)]
    moved = [replace(cell, switch=replace(cell.switch, step=3, ulps=1)) for cell in cells]
    both = new_rows(census, lambda: execute([*cells, *moved], design="given"))
    assert Counter(both["role"]) == {"cell": 4, "child": 4}
    assert set(both["parent_run_id"].dropna()) == set(both["run_id"][both["role"] == "cell"])
    words = ["--store", str(census), "--best", "1", "--times", "1", *TINY]
    runs = open_store(census).runs().set_index("run_id")
    chosen = [run_id for run_id, _ in repeat.planned(words).design.beside]
    assert runs.loc[chosen, "config.switch.step"].isna().all()


@pytest.fixture(scope="module")
def trained_census(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("census") / "S"
    sweep(store, "seed=range(0,6)")()
    return store


@pytest.fixture
def census(trained_census: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_census, tmp_path / "S"))


BRANCH = ["--best", "1", "--random", "2", "--at", "3", "--times", "2", "--redraw", "order,split+init"]


@pytest.mark.parametrize(
    "how", ["python", *(pytest.param(how, marks=pytest.mark.slow) for how in ("command", "python, parts"))]
)
def test_branches_name_their_parents_and_how_they_were_chosen(census: Path, how: str) -> None:
    argv = ["--store", str(census), *BRANCH, *TINY]

    def from_python() -> None:
        plan = branch.planned(argv)
        with pytest.raises(ConfigError, match="not those that their design was made for"):
            execute(plan.__class__(plan[:2], plan.design).__iadd__(plan[2:]))
        execute(plan if how == "python" else list(plan), design=None if how == "python" else plan.design)

    found = new_rows(census, (lambda: _passes(branch.main(argv))) if how == "command" else from_python)
    assert (found["kind"] == "branch").all() and found["design_id"].nunique() == 1
    parents, children = found[found["role"] == "parent"], found[found["role"] == "child"]
    assert Counter(parents["choice"]) == {"best": 1, "drawn": 2} and parents["results_seen"].all()
    detail = next(iter(parents["choice_detail"][parents["choice"] == "best"]))
    assert detail == {"by": "val_loss", "at": 3, "best": 1, "of": 6}
    assert len(children) == 3 * 2 * 2 and not children["results_seen"].any()
    runs = open_store(census).runs().set_index("run_id")
    for _, child in children.iterrows():
        mine, parent = runs.loc[child["run_id"]], runs.loc[child["parent_run_id"]]
        assert child["unit"]["seed"] == parent["seed"] == mine["seed"]
        assert child["line"] == child["parent_run_id"]
        of_parent = parents[parents["run_id"] == child["parent_run_id"]].iloc[0]
        assert (child["choice"], child["choice_detail"]) == (of_parent["choice"], of_parent["choice_detail"])


def test_switched_children_go_on_from_their_parent_at_a_step(census: Path) -> None:
    words = ["--store", str(census), "--best", "1", "--random", "0", "--at", "3", "--times", "2", "--at-step", "2,4"]
    found = new_rows(census, lambda: _passes(branch.main([*words, "--redraw", "order", "--ulps", "3", *TINY])))
    runs = open_store(census).runs().set_index("run_id")
    children = found[found["role"] == "child"]
    assert (found["kind"] == "branch").all() and len(children) == 2 * 2 * 2
    for _, child in children.iterrows():
        mine, parent = runs.loc[child["run_id"]], runs.loc[child["parent_run_id"]]
        assert mine["config.switch.step"] == child["from_step"] == child["unit"]["step"] == mine["branch_step"]
        if child["redrawn"]:
            assert mine["parent_run_id"] == child["parent_run_id"], "the trunk is the parent"
        assert (child["redrawn"] == ["order"]) == pd.notna(mine["config.switch.order"])
        assert (mine["config.switch.ulps"] == 3) == (child["redrawn"] == [])
        assert mine["seed_order"] == parent["seed_order"]
    orders = runs.loc[children["run_id"], "config.switch.order"].dropna()
    assert orders.nunique() == 2 and len(orders) == 4, "one other order for each count, at all steps"
    back = new_rows(census, lambda: _passes(branch.main([*words, "--redraw", "order", "--reverse", *TINY])))
    runs = open_store(census).runs().set_index("run_id")
    for _, child in back[back["role"] == "child"].iterrows():
        mine, parent = runs.loc[child["run_id"]], runs.loc[child["parent_run_id"]]
        assert child["unit"]["reverse"] and mine["config.switch.order"] == parent["seed_order"]
        assert mine["seed_order"] in set(orders)
    typed = new_rows(census, sweep(census, "seed=0", "switch.step=2", "switch.order=5"))
    (child,) = typed.to_dict("records")
    assert (child["role"], child["from_step"], child["redrawn"]) == ("child", 2, ["order"])
    assert runs.loc[child["parent_run_id"], "seed"] == 0
    read = fate.children(Observations.read(census)).groupby(["change", "ulps"])["step"].agg(list)
    later = {(fate.FORWARD, 0): [2, 2, 2, 4, 4], (fate.MOVED, 3): [2, 2, 4, 4], (fate.REVERSE, 0): [2, 2, 4, 4]}
    assert read.map(sorted).to_dict() == later, "as the study of fate reads these rows"


def test_children_are_never_candidates_and_their_children_keep_the_line(census: Path) -> None:
    argv = ["--store", str(census), *BRANCH, *TINY]
    branch.main(argv)
    children = rows(census).query("role == 'child'")
    one = children.iloc[0]
    second = ["--store", str(census), "--parents", one["run_id"], "--redraw", "init", "--times", "1", *TINY]
    found = new_rows(census, lambda: branch.main(second))
    assert set(found["choice"]) == {"named"} and set(found["line"]) == {one["line"]}
    assert set(found["parent_run_id"].dropna()) == {one["run_id"]}
    config = arithmetic(compose([*TINY, f"store.path={census}"]))
    among = candidates(census, config)
    assert not set(among.index) & set(children["run_id"]) and len(among) == 6


def test_candidates_are_members_of_before_any_result(census: Path) -> None:
    """Two seeds were added because of something seen, by a script that did not say so."""
    settings = compose([*TINY, f"store.path={census}"])
    execute([arithmetic(settings, seed=seed) for seed in (50, 51)])
    config = arithmetic(settings)
    assert set(candidates(census, config)["seed"]) == set(range(6))
    with pytest.raises(ConfigError, match="not asked for as members of a population"):
        branch.planned(["--store", str(census), "--best", "7", "--random", "0", "--at", "3", *TINY])
    for seeds, allowed in (("range(0,2)", 0), ("range(0,6)", 6)):  # going on with two of them, then with all
        sweep(census, f"seed={seeds}", "train.steps=12")()
        longer = arithmetic(compose([*TINY, "train.steps=12", f"store.path={census}"]))
        assert len(candidates(census, longer)) == allowed
    for shard in (census / "designs").glob("*.parquet"):
        shard.unlink()
    for _ in range(2):
        assert len(candidates(census, config)) == 0
        with pytest.raises(ConfigError, match="not asked for as members of a population"):
            branch.planned(["--store", str(census), "--best", "1", "--random", "0", "--at", "3", *TINY])
        sweep(census, "seed=range(0,6)")()  # its rows come after the results
    with StoreWriter(census) as writer:
        runs = [identify(arithmetic(settings, seed=seed)).run_id for seed in range(6)]
        writer.record_design(example_design(runs, design_id="declared"), origin="reconstructed")
    assert set(candidates(census, config)["seed"]) == set(range(6)), "somebody said what they were for"


def test_repeats_choose_among_the_population_that_branches_choose_among(census: Path) -> None:
    """Children, and seeds that a script added for something seen, have a run of this condition, too."""
    settings = compose([*TINY, f"store.path={census}"])
    execute([arithmetic(settings, seed=seed) for seed in range(50, 54)])
    branch.main(["--store", str(census), "--best", "1", "--random", "0", "--at", "3", "--times", "1", *TINY])
    members = set(candidates(census, arithmetic(settings)).index)
    how = ["--store", str(census), "--times", "1", "numerics.compile=false", "executor=inline"]
    for wanted, of in ((["--best", "3"], 6), (["--seeds", "50,2"], 10)):
        planned = dict(repeat.planned([*how, *wanted]).design.beside)
        controls = {run for run, purpose in planned.items() if purpose.role == "control"}
        assert controls <= members and ("--seeds" in wanted or planned.keys() <= members)
        assert {purpose.choice_detail["of"] for purpose in planned.values()} == {of}
    with pytest.raises(ConfigError, match=r"6 runs to choose from \(4 more were not asked for as members"):
        repeat.planned([*how, "--best", "7"])
    scan = census.parent / "scan"
    sweep(scan, "seeds.order=range(0,4)")()
    sweep(scan, "seed=0")()  # a master seed in the scan is no reason to leave the others out
    execute([arithmetic(compose([*TINY, f"store.path={scan}"]), seeds__order=9)])
    words = ["--store", str(scan), "--scan", "order", "--best", "2", "numerics.compile=false", "executor=inline"]
    found = Counter((p.role, p.choice_detail["of"]) for p in dict(repeat.planned(words).design.beside).values())
    assert found == {("candidate", 5): 2, ("control", 5): 2}


@pytest.mark.parametrize("how", [pytest.param("command", marks=pytest.mark.slow), "python"])
def test_repeats_name_candidates_controls_and_kinds(census: Path, how: str) -> None:
    settings = ["numerics.compile=false", "executor=inline"]
    argv = ["--store", str(census), "--best", "1", "--times", "2", "--kinds", "ulp,order,again,float64", *settings]
    command = (lambda: _passes(repeat.main(argv))) if how == "command" else (lambda: execute(repeat.planned(argv)))
    found = new_rows(census, command)
    assert (found["kind"] == "repeat").all()
    assert Counter(found["role"]) == {"candidate": 1, "control": 1, "child": 12}
    (candidate,) = found["run_id"][found["role"] == "candidate"]
    runs = open_store(census).runs().set_index("run_id")
    for _, child in found[found["role"] == "child"].iterrows():
        mine, parent, unit = runs.loc[child["run_id"]], runs.loc[child["parent_run_id"]], child["unit"]
        assert unit["of"] == ("candidate" if child["parent_run_id"] == candidate else "control")
        assert child["choice"] == ("best" if unit["of"] == "candidate" else "drawn")
        assert unit["seed"] == parent["seed"]
        assert (mine["config.perturb.ulps"] > 0) == (unit["kind"] == "ulp")
        assert (mine["config.precision"] == "float64") == (unit["kind"] == "float64")
        assert (mine["weights_hash"] == parent["weights_hash"]) == (mine["replicate"] > 0) == (unit["kind"] == "again")
        assert (
            (mine["seed_order"] != parent["seed_order"]) == (unit["kind"] == "order") == (child["redrawn"] == ["order"])
        )
    assert next(iter(found["choice_detail"][found["role"] == "candidate"]))["of"] == 6


def test_transplants_name_both_sides(census: Path) -> None:
    factors = ["--factors", "head=head;rest=blocks,token_embedding,position_embedding"]
    argv = ["--recipient", "0", "--donor", "1", "--replicates", "2", *factors, *TINY, f"store.path={census}"]
    found = new_rows(census, lambda: execute(layers.planned(argv)))
    assert (found["kind"] == "layers").all()
    runs = open_store(census).runs().set_index("run_id")
    cells = found[found["role"] == "cell"]
    assert len(cells) == 4 * 2
    origins = {
        cell["unit"]["recipient"]: cell["run_id"]
        for _, cell in cells.iterrows()
        if not cell["unit"]["exchanged"] and cell["unit"]["repeat"] == 0
    }
    for _, cell in cells.iterrows():
        unit, mine = cell["unit"], runs.loc[cell["run_id"]]
        assert mine["seed"] == unit["recipient"] and mine["seed_perturb"] == unit["repeat"]
        assert ("head" in json.loads(mine["layers"])) == ("head" in unit["exchanged"])
        assert cell["parent_run_id"] == origins[unit["recipient"]]
        assert (cell["donor_run_id"],) == tuple(found["run_id"][found["role"] == "donor"])
    plain = runs[runs["config.perturb.ulps"] == 0].reset_index().set_index("seed")["run_id"]
    for role in ("recipient", "donor"):
        assert set(found["run_id"][found["role"] == role]) == {plain[int(role == "donor")]}


def test_the_design_of_many_runs_takes_no_square_of_their_number() -> None:
    plan = make_plan(prepare_runs([tiny(seed) for seed in range(5_000)]), None)
    begun = time.process_time()
    design = design_of_sweep(plan.runs, plan.found, "given").named(plan.requested)
    assert design.table(plan.found.run_ids).num_rows == 5_000
    assert time.process_time() - begun < 5
