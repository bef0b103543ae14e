"""Branching: families are found, what kept streams hand on is recovered, and intervals cover."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from analysis.statistics.estimate import NotEnoughData
from analysis.statistics.offspring import likeness, related_share, slope
from analysis.studies import ask
from analysis.studies.branching import first_ancestors, pairs
from analysis.studies.repeats import kinds
from grok.streams import derive_seed, drawn_parents, redrawn_seeds
from tests.analysis.simulate import Truth, row, simulate

STREAMS = ("split", "init", "order")


def ids(truths: Sequence[Truth]) -> list[str]:
    return [row(truth).result.run_id for truth in truths]


def branch_record(options: list[str], planned: Sequence[Truth]) -> dict[str, object]:
    """Return the record of a ``grok branch`` command and the runs that it planned."""
    runs = [{"run_id": run} for run in ids(planned)]
    return {"argv": ["python", "-m", "sweeps.branch", *options], "config": {"runs": runs}}


def branched(
    rng: np.random.Generator, parents: int, times: int, variance: dict[str, float], census: int = 0
) -> list[Truth]:
    """Return random seeds and their children; log time is a sum of effects of streams and of pairs of them."""
    known: dict[tuple[str, ...], float] = {}

    def log_time(values: dict[str, str]) -> float:
        total = np.log(6000.0)
        for name, var in variance.items():
            key = (name, *(values[s] for s in name.split("+") if s in STREAMS)) if name != "all" else (
                name, *values.values()
            )  # fmt: skip
            if key not in known:
                known[key] = float(rng.normal(0, np.sqrt(var)))
            total += known[key]
        return float(total)

    truths = []
    shared = {"train.steps": 3000, "eval.every": 500}
    for seed in range(max(parents, census)):
        own = {s: f"{s} of {seed}" for s in STREAMS}
        truths.append(Truth({"seed": seed, **shared}, np.exp(log_time(own))))
        if seed >= parents:
            continue
        for redrawn in [*itertools.combinations(STREAMS, 1), *itertools.combinations(STREAMS, 2)]:
            for k in range(times):
                new = {s: 1_000_000 + 1000 * seed + 100 * STREAMS.index(s) + 10 * len(redrawn) + k for s in redrawn}
                values = {**own, **{s: f"{s} {redrawn} {seed} {k}" for s in redrawn}}
                given = {"seed": seed, **shared, **{f"seeds.{s}": v for s, v in new.items()}}
                truths.append(Truth(given, np.exp(log_time(values))))
    return truths


def test_each_child_belongs_to_the_parent_whose_streams_it_keeps() -> None:
    observations = simulate(branched(np.random.default_rng(0), 4, 2, {"all": 0.1}))
    related = pairs(observations)
    assert len(related) == 4 * 6 * 2 and related["child"].is_unique
    seeds = observations.arithmetic["seed"]
    assert (seeds[related["child"]].to_numpy() == seeds[related["parent"]].to_numpy()).all()
    assert related["redrawn"].value_counts().eq(8).all() and related["generation"].eq(1).all()


def test_children_of_a_child_are_a_second_generation() -> None:
    shared = {"train.steps": 3000, "eval.every": 500}
    truths = [
        Truth({"seed": 5, **shared}, 6000),
        Truth({"seed": 5, "seeds.order": 11, **shared}, 2000),
        Truth({"seed": 5, "seeds.order": 11, "seeds.init": 12, **shared}, 2500),
        Truth({"seed": 5, "seeds.order": 13, **shared}, 2600),
    ]
    related = pairs(simulate(truths))
    # the third run keeps the split of seed 5, too: the nearer parent is the one it shares two streams with
    assert sorted(zip(related["redrawn"], related["generation"], strict=True)) == [
        (("init",), 2), (("order",), 1), (("order",), 1)
    ]  # fmt: skip


def test_children_of_a_named_parent_are_not_each_others() -> None:
    """The parent's streams are typed one by one, so it is no random seed; two of its children share two streams."""
    shared = {"train.steps": 3000, "eval.every": 500}
    streams = {"seeds.split": 21, "seeds.init": 22, "seeds.order": 23}
    parent = Truth({"seed": 0, **streams, **shared}, 2000)
    children = [Truth({"seed": 0, **streams, "seeds.split": 30 + k, **shared}, 2500 + k) for k in range(6)]
    grandchildren = [
        Truth({"seed": 0, **streams, "seeds.split": 30, "seeds.order": 40 + k, **shared}, 2600 + k) for k in range(5)
    ]
    census = [Truth({"seed": s, **shared}, 2000 if s == 7 else 9000 + s) for s in range(30)]
    observations = simulate([parent, *children, *grandchildren, *census])
    named = {truth.time: row(truth).result.run_id for truth in [parent, *children, *grandchildren]}

    observations.sweeps = [
        branch_record(["--store", "s", "--parents", named[parent.time][:12]], children),
        branch_record(["--store", "s", f"--parents={named[children[0].time][:12]}"], grandchildren),
    ]
    related = pairs(observations).set_index("child")["parent"].to_dict()
    assert related == {
        **{named[t.time]: named[parent.time] for t in children},
        **{named[t.time]: named[children[0].time] for t in grandchildren},
    }
    shares = ask("branching", observations).tables[0].frame
    assert shares["parents"].tolist() == ["1 named", "1 descended"] and shares["lines"].tolist() == [1, 1]
    assert shares["super"].tolist() == ["6 of 6", "5 of 5"]
    assert shares["of these parents"].tolist() == ["100% (54 to 100)", "100% (48 to 100)"]
    repeats = {kind.name: [(u.own, sorted(u.repeats)) for u in kind.candidates] for kind in kinds(observations)}
    assert repeats["init + order"] == [(named[parent.time], sorted(named[t.time] for t in children))]
    assert repeats["split + init"] == [(named[children[0].time], sorted(named[t.time] for t in grandchildren))]
    assert "init" not in repeats, "the children's children were chosen by the outcome of a child"


def test_parents_with_a_common_ancestor_are_one_line() -> None:
    """Three children are parents in their turn: for all such parents they are one draw, not three."""
    shared = {"train.steps": 3000, "eval.every": 500}
    streams = {"seeds.split": 21, "seeds.init": 22, "seeds.order": 23}
    parent = Truth({"seed": 0, **streams, **shared}, 2000)
    children = [Truth({"seed": 0, **streams, "seeds.order": 30 + k, **shared}, 2001 + k) for k in range(3)]
    late = itertools.count(9000)
    grandchildren = [
        Truth({"seed": 0, **streams, "seeds.order": 30 + k, "seeds.split": 100 * k + i, **shared},
              2100 + 10 * k + i if i < 2 else next(late))
        for k in range(3) for i in range(4)
    ]  # fmt: skip
    census = [Truth({"seed": s, **shared}, 20_000 + s) for s in range(30)]
    observations = simulate([parent, *children, *grandchildren, *census])
    run = {truth.time: row(truth).result.run_id for truth in [parent, *children, *grandchildren]}

    observations.sweeps = [
        branch_record(["--parents", ",".join(ids([parent]))], children),
        branch_record(["--parents", ",".join(ids(children))], grandchildren),
    ]
    assert set(first_ancestors(observations).values()) == {run[parent.time]}
    shares = ask("branching", observations).tables[0].frame
    assert shares["parents"].tolist() == ["3 descended"] and shares["lines"].tolist() == [1]
    assert shares["super"].tolist() == ["6 of 12"]
    assert shares["of these parents"].tolist() == ["50% (21 to 79)"]
    assert shares["of all such parents"].tolist() == ["50% (0 to 100)"]
    study = ask("repeatability", observations)
    test = next(t for t in study.tests if t.kind.name == "init + order")
    assert len(test.kind.candidates) == 3 and test.result.mean is None
    assert any("The candidates share streams" in finding.text for finding in study.findings)


def test_siblings_that_share_what_their_children_keep_have_their_own_children() -> None:
    """The children's new seeds follow from the trajectory of their own parent."""
    shared = {"train.steps": 3000, "eval.every": 500}
    streams = {"seeds.split": 21, "seeds.init": 22, "seeds.order": 23}
    parent = Truth({"seed": 0, **streams, **shared}, 9000)
    siblings = [Truth({"seed": 0, **streams, "seeds.split": 30 + k, **shared}, 2001 + k) for k in range(2)]
    children = [
        [
            Truth({"seed": 0, **streams, "seeds.split": new["split"], **shared}, 2100 + 10 * k + count)
            for count in range(4)
            for new in [redrawn_seeds(row(sibling).identity.trajectory_id, "split", count)]
        ]
        for k, sibling in enumerate(siblings)
    ]
    census = [Truth({"seed": s, **shared}, 20_000 + s) for s in range(30)]
    observations = simulate([parent, *siblings, *children[0], *children[1], *census])

    observations.sweeps = [
        branch_record(["--parents", ",".join(ids([parent]))], siblings),
        branch_record(["--parents", ",".join(ids(siblings))], [*children[0], *children[1]]),
    ]
    related = pairs(observations).groupby("parent")["child"].apply(set).to_dict()
    families = {own: set(ids(its)) for own, its in zip(ids(siblings), children, strict=True)}
    assert related == {ids([parent])[0]: set(ids(siblings)), **families}
    (kind,) = (kind for kind in kinds(observations) if kind.name == "init + order")
    assert {str(unit.own): set(unit.repeats) for unit in kind.candidates} == families
    assert {unit.line for unit in kind.candidates} == set(ids([parent]))


def test_a_best_parent_that_is_named_later_keeps_its_first_children_apart() -> None:
    """It was picked in this census; a parent that is no random seed of the store was chosen by other results."""
    shared = {"train.steps": 3000, "eval.every": 500}
    census = [Truth({"seed": s, **shared}, 1800 if s == 7 else 9000 + s) for s in range(30)]
    first = [Truth({"seed": 7, "seeds.order": 40 + k, **shared}, 8000 + k) for k in range(4)]
    later = [Truth({"seed": 7, "seeds.order": 50 + k, **shared}, 2000 + k) for k in range(5)]
    observations = simulate([*census, *first, *later])

    (named,) = ids([census[7]])
    observations.sweeps = [
        branch_record(["--best", "1", "--at", "1500"], first),
        branch_record(["--parents", named], later),
    ]
    shares = ask("branching", observations).tables[0].frame.set_index("parents")["super"]
    assert shares.to_dict() == {"1 best": "0 of 4", "1 picked": "5 of 5"}


@pytest.mark.parametrize("whose", ["best", "random"])
def test_a_parent_that_is_super_stays_in_its_class_whoever_trained_its_children(whose: str) -> None:
    """Before the census command went on, `--parents` had planned the super parent's children, who then were picked."""
    shared = {"train.steps": 3000, "eval.every": 500}
    place = drawn_parents(0, 29, 1)[0]
    drawn = place + (place >= 7)  # a random parent is drawn among the others
    own = 7 if whose == "best" else drawn
    census = [Truth({"seed": s, **shared}, 2500 if s == 7 else 2600 if s == own else 9000 + s) for s in range(30)]
    related = {
        parent: [
            Truth({"seed": parent, f"seeds.{stream}": seed, **shared}, 8000 + 10 * n + count)
            for n, stream in enumerate(STREAMS)
            for count in range(4)
            for seed in redrawn_seeds(row(census[parent]).identity.trajectory_id, stream, count).values()
        ]
        for parent in (7, drawn)
    }
    single = ["--redraw", "split,init,order", "--times", "4"]
    (other,) = {7, drawn} - {own}
    choice = ["--best", "1", "--random", "1", "--at", "1500", *single]
    # without --seeds nobody knows among which seeds that command chose: the best of today may not have been there
    for among, classes in ((["--seeds", "0:30"], {"1 best", "1 random"}), ([], {"1 picked"})):
        observations = simulate([*census, *related[7], *related[drawn]])
        observations.sweeps = [
            branch_record(["--parents", ids([census[own]])[0], *single], related[own]),
            branch_record([*among, *choice], related[other]),
        ]
        shares = ask("branching", observations).tables[0].frame
        assert classes <= set(shares["parents"]) and len(set(shares["parents"])) == 2
        assert shares["super"].str.endswith(" of 4").all()


@pytest.mark.parametrize("later", [{"replicate": 7}, {"train.steps": 6000}], ids=["repeated", "longer"])
def test_a_parent_is_found_where_another_run_of_its_trajectory_stands_for_it(later: dict[str, object]) -> None:
    """A parent is repeated, say on another product path, or extended: its children stay its children."""
    shared = {"train.steps": 3000, "eval.every": 500}
    streams = {"seeds.split": 21, "seeds.init": 22, "seeds.order": 23}
    parents = [Truth({"seed": 0, **streams, "seeds.order": 30 + k, **shared}, 2000 + k) for k in range(4)]
    children = [
        Truth({"seed": 0, **streams, "seeds.order": 30 + k, "seeds.split": 40 + 10 * k + i, **shared}, 2500)
        for k in range(4) for i in range(4)
    ]  # fmt: skip
    repeats = [Truth({**truth.overrides, **later}, truth.time) for truth in parents]
    observations = simulate([*repeats, *parents, *children])
    runs = [{"run_id": row(truth).result.run_id} for truth in children]
    named = ",".join(row(truth).result.run_id for truth in parents)
    observations.sweeps = [{"argv": ["python", "-m", "sweeps.branch", "--parents", named], "config": {"runs": runs}}]
    found = observations.arithmetic.loc[pairs(observations).set_index("child")["parent"], "seed_order"]
    theirs = observations.arithmetic.loc[pairs(observations)["child"], "seed_order"]
    assert len(found) == 16 and found.tolist() == theirs.tolist()


def test_children_by_layers_redraw_one_layer_and_a_transplant_is_none() -> None:
    shared = {"train.steps": 3000, "eval.every": 500}
    parents = [Truth({"seed": s, **shared}, 5000 + 100 * s) for s in range(12)]
    init = {s: derive_seed(s, "init") for s in range(12)}
    children = [
        Truth({"seed": s, "seeds.layers": {"head": 1000 + 10 * s + k}, **shared}, 2000)
        for s in (3, 4)
        for k in range(3)
    ]
    two = [Truth({"seed": 3, "seeds.layers": {"head": 50 + k, "blocks.0": 60 + k}, **shared}, 7000) for k in range(4)]
    moved = [Truth({"seed": 3, "seeds.layers": {"head": init[k]}, **shared}, 2000) for k in (5, 6)]
    store = with_sweep([*parents, *children, *two, *moved])
    related = pairs(store)
    assert related["redrawn"].value_counts().to_dict() == {("layers.head",): 6, ("layers.blocks.0", "layers.head"): 4}
    assert related["generation"].eq(1).all()
    study = ask("branching", store)
    head, both = study.families[::-1]
    assert (head.name, len(head.rows)) == ("layers.head", 6) and head.rows["super"].all()
    assert (both.name, both.rows["super"].any()) == ("layers.blocks.0 and layers.head", False)
    assert head.kept == "split, order and the other layers"
    shares = study.tables[0].frame
    assert shares["redrawn"].tolist() == ["layers.blocks.0 and layers.head", "layers.head"]


def test_what_a_pair_carries_is_recovered() -> None:
    variance = {"init": 0.02, "split+init": 0.05, "order": 0.01, "all": 0.02}
    study = ask("branching", with_sweep(branched(np.random.default_rng(3), 30, 3, variance)))
    truth = {("order",): 0.7, ("init",): 0.1, ("split",): 0.3, ("split", "order"): 0.2, ("init", "order"): 0.0}
    for redrawn, share in truth.items():
        found = study.slopes[redrawn]
        assert found.low <= share <= found.high and found.high - found.low < 1.2


def test_the_slope_over_random_parents_alone_is_beside_that_over_all() -> None:
    """The best are chosen by an early loss, which may tell more about the kept streams than the outcome does."""
    study = ask("branching", with_sweep(branched(np.random.default_rng(3), 16, 2, {"init": 0.05, "all": 0.02})))
    table = next(table for table in study.tables if table.name == "branching_slopes").frame.set_index("redrawn")
    order = next(family.rows for family in study.families if family.redrawn == ("order",))
    drawn = order[order["kind"] == "random"]
    assert 5 <= drawn["parent"].nunique() < order["parent"].nunique() == 16
    codes = np.unique(drawn["parent"], return_inverse=True)[1]
    alone = slope(drawn["parent_outcome"].to_numpy(), drawn["outcome"].to_numpy(), codes)
    assert table.loc["order", "random parents alone"] == alone.plain(2) != table.loc["order", "handed on"]


def with_sweep(truths: list[Truth]):  # type: ignore[no-untyped-def]
    observations = simulate(truths)
    observations.sweeps = [{"argv": ["python", "-m", "sweeps.branch", "--best", "3", "--at", "1500"]}]
    return observations


def test_the_best_by_early_loss_are_told_from_random_parents() -> None:
    truths = branched(np.random.default_rng(4), 8, 2, {"split+init": 0.05, "all": 0.01}, census=16)
    study = ask("branching", with_sweep(truths))
    kinds = study.families[0].rows.groupby("kind")["parent"].nunique()
    assert set(kinds.index) <= {"best", "random"} and kinds.sum() == 8


@pytest.mark.parametrize("chosen", [False, True], ids=["random parents", "extreme parents"])
@pytest.mark.parametrize("handed_on", [0.0, 0.5])
def test_the_slope_covers_whoever_chose_the_parents(chosen: bool, handed_on: float) -> None:
    rng = np.random.default_rng(7)
    covered, families, size, draws = 0, 12, 4, 400
    for _ in range(draws):
        many = rng.normal(size=60)
        parents = np.sort(many)[[*range(6), *range(54, 60)]] if chosen else many[:families]
        kin = handed_on * parents + np.sqrt(handed_on * (1 - handed_on)) * rng.normal(size=families)
        x = np.repeat(parents, size)
        y = np.repeat(kin, size) + np.sqrt(1 - handed_on) * rng.normal(size=families * size)
        found = slope(x, y, np.repeat(np.arange(families), size))
        covered += found.low <= handed_on <= found.high
    assert covered / draws > 0.92


def test_the_slope_covers_where_the_children_of_extreme_parents_scatter_most() -> None:
    """Accuracy is flat for slow seeds and steep for fast ones: few families decide the slope, and they scatter most."""
    rng = np.random.default_rng(10)
    covered, families, draws, truth = 0, 30, 600, 0.3
    for _ in range(draws):
        parents = rng.lognormal(0, 1, families)
        children = truth * parents + parents * rng.normal(size=families)
        found = slope(parents, children, np.arange(families))
        covered += found.low <= truth <= found.high
    assert covered / draws > 0.92


def test_one_parent_that_differs_from_all_others_gives_no_slope() -> None:
    with pytest.raises(NotEnoughData, match="differ"):
        slope(np.array([0.0, 0, 0, 0, 3]), np.arange(5.0), np.arange(5))


@pytest.mark.slow
def test_a_share_among_siblings_is_wider_than_among_strangers_and_covers() -> None:
    rng = np.random.default_rng(8)
    for alike in (0.0, 0.8):
        covered, draws, families, size = 0, 400, 15, 4
        cut = 1.2816  # one child in ten
        for _ in range(draws):
            kin = np.repeat(np.sqrt(alike) * rng.normal(size=families), size)
            y = kin + np.sqrt(1 - alike) * rng.normal(size=families * size)
            found = related_share(y > cut, y, np.repeat(np.arange(families), size))
            covered += found.low <= 0.1 <= found.high
        assert covered / draws > 0.93
    strangers = related_share(y > cut, y, np.arange(len(y)))
    assert strangers.high <= found.high


def test_likeness_is_that_of_the_analysis_of_variance() -> None:
    rng = np.random.default_rng(9)
    groups = np.repeat(np.arange(400), 5)
    y = np.sqrt(0.6) * np.repeat(rng.normal(size=400), 5) + np.sqrt(0.4) * rng.normal(size=2000)
    assert likeness(y, groups) == pytest.approx(0.6, abs=0.06)
    assert np.isnan(likeness(y[:1], groups[:1]))
