"""Settings compared, prediction and measurements inside a network, on simulated stores whose truth is known."""

import contextlib
import itertools
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from grok.analysis.compare import DIFFERENCE, Sides, compared
from grok.analysis.figures import drawings
from grok.analysis.observations import Observations
from grok.analysis.statistics.estimate import NotEnoughData, generator, mean
from grok.analysis.statistics.prediction import auroc, screened
from grok.analysis.studies.conditions import CROSSING, Comparison, bound_of, ratio_of_means
from grok.analysis.studies.mechanism import Mechanism
from grok.analysis.studies.val_shuffle import variance_ratio
from grok.errors import ConfigError
from grok.store.designs import Purpose
from tests.analysis.simulate import Planned, Truth, ask, census, simulate


def settings_study(name: str, setting: str, truths: list[Truth]) -> Comparison:
    study = ask(name, simulate(truths))
    assert isinstance(study, Comparison)
    for drawing in drawings(study):
        assert drawing.png().startswith(b"\x89PNG")
    said = " ".join([f.text + f.shown for f in study.findings] + study.notes + [study.tables[0].frame.to_csv()])
    assert "nan" not in said.split() and "inf" not in said.split() and "None" not in said
    assert all(f.setting == setting for f, _ in study.families)
    return study


def runs(
    setting: str, factors: dict[object, float], seeds: int, rng: np.random.Generator, **more: object
) -> list[Truth]:
    """One time per seed, times each value's factor, times noise of a tenth."""
    base = rng.normal(np.log(3000), 0.5, seeds)
    return [
        Truth(
            {"seed": i, setting: value, "train.steps": 20_000, "eval.every": 250, **more},
            float(np.exp(base[i] + np.log(factor) + rng.normal(0, 0.1))),
        )
        for value, factor in factors.items()
        for i in range(seeds)
    ]


def test_weight_decay_is_compared_with_the_default() -> None:
    factors: dict[object, float] = {0.0: 20.0, 0.1: 1.0, 1.0: 0.5}
    study = settings_study(
        "weight_decay", "optim.weight_decay", runs("optim.weight_decay", factors, 25, np.random.default_rng(12))
    )
    assert next(iter(study.families[0][0].groups)) == "0.1"
    none, one = study.contrasts
    assert (none.label, none.bound) == ("optim.weight_decay=0", "at least")
    assert one.bound == "" and one.slowdown is not None
    assert one.slowdown.low < 0.5 < one.slowdown.high
    assert one.slowdown.high / one.slowdown.low < 1.4  # the seeds' own spread is out of a paired comparison
    assert all(p < 0.05 for p in study.p.values()) and study.headlines[0].shown == "2 of 2", "not one of them alone"


def test_the_reference_is_of_the_same_seeds_where_enough_of_them_were_run() -> None:
    rng = np.random.default_rng(4)
    truths = runs("model.init_scale", {1.0: 1.0, 2.0: 2.0}, 8, rng)
    # A census of slow seeds of the reference, which the value was never run with.
    truths += [Truth({"seed": 100 + i, "train.steps": 20_000, "eval.every": 250}, 15_000.0) for i in range(60)]
    study = settings_study("interventions", "model.init_scale", truths)
    (contrast,) = study.contrasts
    assert contrast.paired and len(contrast.base) == 8
    assert contrast.slowdown is not None and contrast.slowdown.low < 2.0 < contrast.slowdown.high
    assert study.tables[0].frame["generalised"].tolist() == ["8 of 8", "8 of 8"]


@pytest.mark.parametrize(("planned", "left_out", "size"), [("2020", 1, 69), ("2020", 0, 9), ("2040", 1, 8)])
def test_seeds_listed_after_the_results_of_the_reference_tell_nothing(planned: str, left_out: int, size: int) -> None:
    """Unless they are the first ones; planned before the results, or declared since."""
    truths = runs("model.init_scale", {1.0: 1.0, 2.0: 1.0}, 9, np.random.default_rng(4))
    del truths[9 : 9 + left_out]
    truths += [Truth({"seed": 100 + i, "train.steps": 20_000, "eval.every": 250}, 15_000.0) for i in range(60)]
    found = simulate(truths)
    later = found.designs["run_id"].map(found.all_runs.set_index("run_id")["config.model.init_scale"]) == 2.0
    designs = found.designs.assign(planned_at=np.where(later, "2041", planned).astype("datetime64[us]"))
    found = Observations(found.all_runs, found.curves, path=found.path, designs=designs)
    (contrast,) = ask("interventions", found).contrasts
    assert Sides.of(found, found.path, ("init_scale=1", "init_scale=2")).by_results == (size == 69)
    assert any("beyond chance" in f.label for f in ask("survival", found).findings) == (size != 69)
    assert len(contrast.base) == size and (contrast.bound == "chosen") == (contrast.slowdown is None) == (size == 69)


def test_two_sides_are_of_the_lengths_that_were_asked_for() -> None:
    """Going on with the late seeds of one side, on both, takes no short run away."""
    times = np.exp(np.random.default_rng(9).normal(np.log(1000), 0.5, (2, 40)))
    given = {"train.steps": 1000, "eval.every": 100}
    both = [
        [Truth({"seed": s, "optim.weight_decay": d, **given}, t) for s, t in enumerate(x)]
        for d, x in zip((0.5, 2.0), times, strict=True)
    ]
    late = [(s, d) for s, d in itertools.product(range(40), (0, 1)) if times[0][s] > 1000]
    longer = [Truth({**both[d][s].overrides, "train.steps": 4000}, float(times[d][s])) for s, d in late]
    found = simulate([*both[0], *both[1], *longer], Planned("extend", [(t, Purpose(role="member")) for t in longer]))
    for also in ("", " steps=1000"):
        sides = Sides.of(found, found.path, (f"weight_decay=0.5{also}", f"weight_decay=2{also}"))
        assert sides.paired and not sides.by_results and len(sides.rows[0]) == 40
        assert set(pd.concat(sides.rows)["config.train.steps"]) == {1000}
    chosen = Sides.of(found, found.path, ("weight_decay=0.5 steps=4000", "weight_decay=2 steps=4000"))
    assert chosen.by_results and len(chosen.rows[1]) == len(late) / 2
    together = simulate([*both[0], *both[1], *longer])  # one plan asks for both lengths before any result
    assert not Sides.of(together, found.path, chosen.names).by_results
    with pytest.raises(ConfigError, match="another length of it"):
        Sides.of(found, found.path, ("weight_decay=2 steps=1000", "weight_decay=2 steps=4000"))


def test_another_setting_that_varies_is_named_or_held_equal() -> None:
    """A comparison of two mixtures of it is refused; what is called slowest has a reference at each value."""
    truths, rng = [], np.random.default_rng(4)
    for decay, rate, n in ((0.5, 0.01, 40), (0.5, 0.02, 15), (2.0, 0.01, 15), (2.0, 0.02, 40)):
        given = {"optim.weight_decay": decay, "optim.lr": rate, "train.steps": 4000, "eval.every": 50}
        times = 500 * (1 + (rate > 0.01)) * np.exp(rng.normal(0, 0.3, n))
        truths += [Truth({"seed": s, **given}, float(t)) for s, t in enumerate(times)]
    found = simulate(truths)
    with pytest.raises(ConfigError, match=r"lr is 0\.01, 0\.02 in A"):
        Sides.of(found, found.path, ("weight_decay=0.5", "weight_decay=2 lr=0.02"))
    assert Sides.of(found, found.path, ("weight_decay=0.5 lr=0.01", "weight_decay=2 lr=0.02")).shared == 40
    factor = {(0.5, 0.01): 0.8, (2.0, 0.02): 0.6}  # no value of weight decay is slower, wherever it is
    opposed = [Truth(t.overrides, t.time * factor.get(tuple(list(t.overrides.values())[1:3]), 1.2)) for t in truths]
    text = settings_study("weight_decay", "optim.weight_decay", opposed).findings[0].text
    assert "slowest" not in text and "0.5 at optim.lr=0.02" in text


@pytest.mark.parametrize("coupled", [True, False])
def test_two_schedules_of_evaluation_are_no_side_where_they_redraw_the_order(coupled: bool) -> None:
    given = [{"optim.weight_decay": d, "eval.every": e} for d, e in ((0.5, 25), (0.5, 50), (2.0, 25))]
    more = {"train.steps": 1000, "eval.couple_order": coupled}
    found = simulate([Truth({"seed": 10 * i + s, **of, **more}, 500.0) for i, of in enumerate(given) for s in range(6)])
    with pytest.raises(ConfigError, match=r"every is 25, 50 in A") if coupled else contextlib.nullcontext():
        Sides.of(found, found.path, ("weight_decay=0.5", "weight_decay=2"))


def test_budgets_that_differ_do_not_bend_the_ratio() -> None:
    rng = np.random.default_rng(5)
    base = rng.uniform(300, 800, 10)
    truths = [Truth({"seed": i, "train.steps": 1000, "eval.every": 20}, t) for i, t in enumerate(base)]
    truths += [
        Truth({"seed": i, "task.label_noise": 0.1, "train.steps": 20_000, "eval.every": 20}, 8 * t)
        for i, t in enumerate(base)
    ]
    (contrast,) = settings_study("interventions", "task.label_noise", truths).contrasts
    assert contrast.horizon == 20_000 and contrast.bound == ""
    assert contrast.slowdown is not None and contrast.slowdown.value == pytest.approx(8, rel=0.02)


def test_longer_runs_of_one_value_are_no_advantage() -> None:
    truths = []
    for seed in range(20):
        time = 1500 + 100.0 * seed
        truths.append(Truth({"seed": seed, "train.steps": 5000 if seed < 10 else 2000, "eval.every": 100}, time))
        truths.append(Truth({"seed": seed, "precision": "float64", "train.steps": 2000, "eval.every": 100}, time))
    frame = ask("interventions", simulate(truths)).tables[0].frame
    assert frame["generalised"].tolist() == ["6 of 20 by step 2,000, 4 later", "6 of 20 by step 2,000"]
    # A value whose runs were short because all of them were quick takes nothing from the others.
    quick = [
        Truth({"seed": s, "precision": p, "train.steps": n, "eval.every": 100}, t + 10.0 * s)
        for s in range(10)
        for p, n, t in (("float32", 1000, 400), ("float64", 5000, 3000))
    ]
    assert ask("interventions", simulate(quick)).tables[0].frame["generalised"].tolist() == ["10 of 10"] * 2


@pytest.mark.parametrize("sizes", [[1] * 8, [8] * 5, [40, 20, 10, 5, 3, 2]])
@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_of_the_ratio_covers_at_its_rate(sizes: list[int], paired: bool) -> None:
    """Also where runs share the seeds of few splits, on which the setting has different effects."""
    rng, held, alone = np.random.default_rng(8), 0, 0
    split = np.repeat(np.arange(len(sizes)), sizes)
    shared = [split if paired else np.tile(split, 2)] if max(sizes) > 1 else []
    for _ in range(1000):
        log, log0 = (rng.normal(0, 0.5, len(sizes))[split] + rng.normal(0, 0.3, len(split)) for _ in range(2))
        e, p = ratio_of_means(np.log(2) + log, log0, paired, shared)
        held += e.low <= 2 <= e.high
        alone += ratio_of_means(log, log0, paired)[1] > 0.05
        assert (p < 0.05) == (not e.low <= 1 <= e.high)
    assert 930 <= held <= (970 if max(sizes) == min(sizes) else 985) and (not shared or alone < 700)


def test_runs_that_share_seeds_are_compared_by_the_spread_between_these() -> None:
    rng, shift = np.random.default_rng(6), np.array([[1.2, 0.9, -0.3, 0.4], [0.0] * 4])
    truths = []
    for decay, split, init in itertools.product((0.5, 2.0), range(4), range(10)):
        time = float(500 * np.exp(shift[int(decay > 1), split] + rng.normal(0, 0.1)))
        given = {"seeds.split": split, "seeds.init": 4 * init + split, "train.steps": 4000, "eval.every": 50}
        truths.append(Truth({**given, "optim.weight_decay": decay}, time))
    (contrast,) = settings_study("weight_decay", "optim.weight_decay", truths).contrasts
    assert contrast.shared == ("split",) and contrast.about == ", at one order seed"
    lost = simulate([*truths[:-1], Truth(truths[-1].overrides, 1e9, status="diverged", numerics="device=cuda")])
    about = ask("weight_decay", lost).contrasts[0].about
    assert "count as late ones (1 here and 0 at 0.5)" in about and "not computed as at 0.5 (device)" in about
    found = simulate(truths)
    for sides in (
        ("weight_decay=0.5", "weight_decay=2"),
        ("weight_decay=0.5 seeds.init<20", "weight_decay=2 seeds.init>19"),
    ):
        study = compared(found, Sides.of(found, found.path, sides))
        (numbers,) = study.files.values()
        told = numbers[(numbers["of"] == DIFFERENCE) & numbers["what"].str.contains("over A")]
        assert len(told) == 2 and (told["low"] <= 1).all() and (told["high"] >= 1).all()
        assert numbers[numbers["of"] == sides[1]]["low"].iloc[0] < 0.5, "4 of 4 splits, and not 40 of 40 runs"
        assert "Up to 60% of all seeds" in str(study.notes)
    assert mean(np.full(7, 0.1) * 3).low == mean(np.full(7, 0.1) * 3).high, "all equal"


@pytest.mark.parametrize("late", [0.3, 0.45])
def test_a_ratio_that_is_cut_off_keeps_at_least_and_its_bound_covers(late: float) -> None:
    rng = np.random.default_rng(8)
    open_ended = held = two_ended = crossing = covered = 0
    for _ in range(300):
        log, log0 = np.log(8) + rng.normal(0, 0.5, 32), rng.normal(0, 0.5, 32)
        end = float(np.quantile(log, 1 - late))
        log, log0 = np.minimum(log, end), np.minimum(log0, end)
        e, _ = ratio_of_means(log, log0, False)
        open_ended += bound_of(log, log0, end) == "at least"
        two_ended += e.low <= 8 <= e.high
        held += e.low <= 8
        mixed, log0 = np.where(rng.random(32) < late, 4.0, rng.normal(0, 0.2, 32)), rng.normal(3, 0.2, 32)
        e, _ = ratio_of_means(mixed, log0, False)  # the faster side has the late runs: of times up to exp(4)
        crossing += bound_of(mixed, log0, 4.0) == CROSSING
        covered += e.low <= np.exp(4 * late - 3) <= e.high
    assert crossing == 300 and 277 <= covered <= 293
    assert bound_of(np.repeat([1.0, 4], 4), np.repeat([0.5, 4], [5, 3]), 4.0) == CROSSING, "late ones on both sides"
    assert open_ended == 300
    assert two_ended < 270
    assert held >= 285


def test_a_scan_at_a_fixed_order_is_not_compared_with_random_seeds() -> None:
    scan = [Truth({"seeds.init": i, "seeds.order": 8, "optim.weight_decay": 0.0}, 900.0 + i) for i in range(8)]
    other = [Truth({"seed": 20 + i, "optim.weight_decay": 1.0}, 2000.0 + i) for i in range(9)]
    with pytest.raises(NotEnoughData):
        ask("weight_decay", simulate([*scan, *other]))
    third = [Truth({"seed": 20 + i, "optim.weight_decay": 2.0}, 1500.0 + i) for i in range(9)]
    study = ask("weight_decay", simulate([*scan, *other, *third]))
    assert [c.label for c in study.contrasts] == ["optim.weight_decay=2"]
    assert any("optim.weight_decay: 0 left out" in note for note in study.notes)


def val_shuffle(early: float, late: float, shift: float, rng: np.random.Generator, ways: int = 2) -> list[Truth]:
    """Order noise before the first look is shared by coupled and uncoupled runs, later noise is drawn afresh."""
    truths = []
    for seed, base in enumerate(rng.normal(np.log(4000), 0.3, 6)):
        for order in range(8):
            shared = base + rng.normal(0, early)
            for way in range(ways + 1):
                given = {"seed": seed, "seeds.order": order, "train.steps": 12_000, "eval.every": 150}
                if way:
                    given |= {"eval.couple_order": True, "eval.passes": way}
                truths.append(Truth(given, float(np.exp(shared + rng.normal(0, late) + (shift if way else 0.0)))))
    return truths


def test_the_bug_is_order_noise_unless_it_is_more() -> None:
    rng = np.random.default_rng(16)

    def estimates(truths: list[Truth]) -> dict[str, Any]:
        study = ask("val_shuffle", simulate(truths))
        assert study.shared_steps == 196  # epochs of 49 updates, the first look at step 150
        return {f.label: f.estimate for f in study.findings}

    found = estimates(val_shuffle(0.3, 0.2, 0.0, rng))
    assert found["effect of the coupling"].low <= 0 <= found["effect of the coupling"].high
    assert found["size against order noise"].low <= 1 <= found["size against order noise"].high
    assert found["size against order noise"].high < 2.5
    found = estimates(val_shuffle(0.3, 0.2, -0.8, rng))
    assert found["effect of the coupling"].high < -0.5
    assert found["size against order noise"].low > 1
    slow = [Truth(t.overrides, t.time * (1.6 if t.overrides.get("eval.passes") == 2 else 1))
            for t in val_shuffle(0.3, 0.05, 0.0, rng)]  # fmt: skip
    assert estimates(slow)["size against order noise"].low > 1, "a slower way is no noise"
    alone = ask("val_shuffle", simulate(val_shuffle(0.3, 0.2, 0.0, rng, ways=1)))  # nothing to hold the size against
    assert not any("size against order noise" in f.label for f in alone.findings)


@pytest.mark.slow
def test_the_size_of_the_bug_covers() -> None:
    rng = generator("bug size")
    inside = 0
    for _ in range(300):
        off, one, two = rng.normal(0, 0.2, (3, 32))
        e = variance_ratio(((one - off) ** 2)[:, None], ((one - two) ** 2)[:, None], "test")
        inside += e.low <= 1 <= e.high
    assert 0.92 < inside / 300 < 0.99


@pytest.fixture(scope="module")
def measured() -> Observations:
    """``early`` moves at half of the time to generalise, ``late`` at 1.5 times it, ``flat`` never."""
    found = simulate(census(80, np.random.default_rng(2), steps=20_000, every=250))
    curves = found.curves.copy()
    rng = np.random.default_rng(17)
    clock = curves["step"] / curves["run_id"].map(found.arithmetic["grokked_step"].astype(float)).fillna(40_000)
    curves["metrics"] = [
        json.dumps(
            {"early": float(c > 0.5), "late": float(c > 1.5), "flat": rng.normal(), "logit_scale": 1 / (c + 0.1)}
            | {"neurons_0_at_3": c, "neurons_0_tuned": c}
        )
        for c in clock
    ]
    curves["block_norms"] = [json.dumps({"head": 10 + np.sin(s / 600)}) for s in curves["step"]]
    return Observations(found.all_runs, curves)


def test_what_leads_and_what_lags(measured: Observations) -> None:
    study = ask("mechanism", measured)
    assert isinstance(study, Mechanism)
    table = study.tables[0].frame.set_index("metric")
    assert table.loc["early", "at (of the time)"] == pytest.approx(0.5, abs=0.1)
    text = " ".join(f.text for f in study.findings)
    assert "early makes half of its total change before generalisation in most runs" in text
    assert "late makes half of its total change after generalisation in most runs" in text
    assert "meaning" not in table or table.loc["early", "meaning"] == "", "no name twice"
    assert table.loc["early", "runs that generalised"] == study.generalised <= table.loc["early", "runs"] == study.runs
    assert "flat leads" not in {f.label for f in study.findings}
    drawn = {d.name: d for d in drawings(study)}
    assert {n[7:] for n in drawn} == {"early", "late", "flat", "logit_scale", "neurons_0_tuned", "head_norm"}
    assert drawn["inside_early"].title == "early" and "tuned neurons" in drawn["inside_neurons_0_tuned"].title
    early = drawn["inside_early"].data.set_index("clock")["median"]
    assert early.loc[:0.4].max() == 0
    assert early.loc[0.7:].min() == 1


SEEDS = 150


def store(kind: str, rates: tuple[float, float], rng: np.random.Generator) -> Observations:
    """Return two populations whose seeds are super at ``rates``: two scans of init, or two weight decays."""
    truths = []
    for which, rate in enumerate(rates):
        hits = rng.random(SEEDS) < rate
        for i, hit in enumerate(hits):
            seeds: dict[str, Any] = {"seeds.init": i, "seeds.order": 8 + which} if kind == "scans" else {"seed": i}
            given = {**seeds, "train.steps": 3000, "eval.every": 1500}
            if kind == "conditions":
                given["optim.weight_decay"] = (0.1, 0.0)[which]
            device = ("cpu", "cuda")[which * (kind == "conditions")]
            truths.append(Truth(given, 1500.0 if hit else 12_000.0, numerics=f"device={device}"))
    return simulate(truths)


@pytest.mark.parametrize(
    ("kind", "rates"),
    [("conditions", (0.1, 0.1)), ("conditions", (0.1, 0.3)), pytest.param("scans", (0.1, 0.1), marks=pytest.mark.slow)],
)
def test_populations_are_named_and_told_apart_if_their_rates_differ(kind: str, rates: tuple[float, float]) -> None:
    observations = store(kind, rates, generator(f"report {kind} {rates}"))
    census = ask("census", observations)
    assert len(census.parts) == 2
    for part in census.parts:
        rate = rates[int(part.about == "optim.weight_decay=0" or part.population.fixed.get("order") == 9)]
        assert part.shares["super"].low <= rate <= part.shares["super"].high
    (said,) = [f for f in census.findings if f.label.startswith("populations that differ")]
    assert said.shown.startswith("1 ") == (rates[0] != rates[1]) == ("(device)" in said.text)
    if kind == "conditions":
        study = ask("weight_decay", observations)
        (ratio,) = [f for f in study.findings if f.label.startswith("super seeds at")]
        assert ratio.estimate is not None and "(device)" in ratio.text
        assert ratio.estimate.low <= rates[1] / rates[0] <= ratio.estimate.high


def sample(rng: np.random.Generator, n: int, shift: float, rate: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    labels = rng.random(n) < rate
    return rng.normal(0, 1, n) + shift * labels, labels


def test_auroc_of_a_known_table() -> None:
    scores = np.concatenate([np.arange(10.0), np.arange(5.0, 15.0)])
    labels = np.repeat([False, True], 10)
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[10:] for b in scores[:10]]
    assert auroc(scores, labels).value == pytest.approx(np.mean(pairs))


def test_a_signal_is_predicted_and_the_screen_misses_what_theory_says() -> None:
    rng = generator("signal")
    signal, labels = sample(rng, 20_000, 2.0, 0.1)
    assert auroc(signal, labels).value == pytest.approx(norm.cdf(2 / np.sqrt(2)), abs=0.01)
    missed, cost = screened(signal, labels, 0.2, 500, np.full(len(labels), 3000.0))
    # The cut that keeps a fifth: 0.1 norm.sf(c - 2) + 0.9 norm.sf(c) = 0.2
    cuts = np.linspace(-3, 5, 4001)
    cut = cuts[np.argmin(np.abs(0.1 * norm.sf(cuts - 2) + 0.9 * norm.sf(cuts) - 0.2))]
    assert missed / labels.sum() == pytest.approx(norm.cdf(cut - 2), abs=0.03)
    assert cost == pytest.approx(500 / 3000 + 0.2 * 2500 / 3000, abs=1e-3)
