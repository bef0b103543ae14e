"""Seed census: how many seeds of a population generalise, and the diary's classes; also another implementation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grok.analysis.criteria import (
    CLASSES,
    DIARY,
    UNJUDGED,
    SpeedJudgement,
    accuracy_at,
    held_by,
    judge_by_time,
    share_by,
    usual_length,
)
from grok.analysis.observations import Observations, floats, listed
from grok.analysis.populations import Population, populations
from grok.analysis.proposals import code_needed, rerun_command
from grok.analysis.statistics.estimate import FEWEST_OF_A_MEDIAN, LEVEL, Estimate, NotEnoughData, generator, holm
from grok.analysis.statistics.proportions import Unequal, alike, at_any_time, share, unequal_rates
from grok.analysis.statistics.survival import Times, quantile
from grok.analysis.studies.base import (
    Beside,
    Finding,
    Question,
    Study,
    Table,
    by_population,
    failed,
    has_populations,
    one_by_one,
)
from grok.arithmetic.outcome import GENERALISED_VAL_ACC, PERSISTENCE

FEW_LONGER: Final = 0.02
"""Largest share of longer or shorter runs that is not said."""
FEW_ALONE: Final = 0.1
"""Largest share of seeds that were asked for one by one that the first screen does not say."""
BEST = 12
"""Number of rows of the table of best seeds."""
FEW_NAMED: Final = 6
"""Largest number of seeds, or of groups of runs, that a sentence names."""
COMPUTED: Final = {
    "device": "devices",
    "numerics": "numerics tags",
    "git_commit": "commits",
    "config.executor": "executors",
}
"""Columns that must not decide an outcome, and their plural."""
EARLY: Final = "early seeds"
"""Label of the share of seeds that generalised at least three times faster than the median."""
DIARY_SAYS: Final = {("order",): "0.43% super, later 0.6% given the model", ("init",): "0.4% super, given the order"}
"""The diary's rates of scans, by the stream that differs; it gives no number of runs and no fixed seeds."""
ALWAYS: Final = ", at any time"
"""End of the label of a share whose interval holds as a store grows."""


@dataclass(kw_only=True)
class Census(Study):
    """The census of one population."""

    population: Population
    rows: pd.DataFrame
    """One row per seed, as `judged` returns them."""
    times: Times
    curves: pd.DataFrame
    """The evaluations of its runs."""
    horizon: int
    shares: dict[str, Estimate]
    by_time: SpeedJudgement | None = None
    own_length: bool = False
    """Whether other populations have another usual length: then each share that generalised has its step."""
    own_horizon: bool = False
    """Whether other populations have another horizon: then each share of a class has its step."""
    wrong: list[str] = field(default_factory=list)
    """Why the intervals below do not hold: failed seeds, equal bits, devices that differ."""

    @property
    def usual(self) -> int:
        """The usual length of its runs, in steps."""
        return usual_length(self.rows["config.train.steps"])

    @property
    def kinds(self) -> pd.Series:
        """Each seed's class of the diary; on another task whether it was early, late or not within the steps."""
        if self.population.has_diary_task:
            return self.rows["label"]
        early = self.by_time.is_early if self.by_time is not None else False
        done = "late" if self.by_time is not None else "generalised"
        kinds = np.where(_done(self), done, f"not within {self.usual:,} steps")
        return pd.Series(np.where(early, "early", kinds), index=self.rows.index)


def judged(
    observations: Observations,
    rows: pd.DataFrame,
    horizon: int | None = None,
    least: float = DIARY.super_accuracy,
) -> tuple[pd.DataFrame, int]:
    """Return ``rows`` as they stand at the horizon (by default that of these runs), and the horizon.

    Added columns: ``accuracy`` and ``label`` at the horizon; ``held``, see `held_by` for the accuracy ``least``; and
    ``generalised``, the step of generalisation by the horizon, else infinite. One step alone can be a dip.
    """
    step = DIARY.horizon_of(rows) if horizon is None else horizon
    curves = observations.curves_of(rows.index)
    accuracy = accuracy_at(curves, rows.index, step)
    done = floats(rows["grokked_step"])
    return rows.assign(
        accuracy=accuracy,
        label=DIARY.classify(accuracy, rows["status"] == "diverged"),
        held=held_by(curves, rows, step, least),
        generalised=np.where(done <= step, done, np.inf),
    ), step


def one(observations: Observations, population: Population) -> Census:
    """Return the answer for one population."""
    rows, horizon = judged(observations, population.rows)
    labels = rows.loc[rows["label"] != UNJUDGED, "label"]
    beside_it = [p.rows for p in observations.once(populations).every]
    census = Census(
        population=population,
        rows=rows,
        times=observations.times(rows),
        curves=observations.curves_of(rows.index),
        horizon=horizon,
        shares={c: share(int((labels == c).sum()), len(labels)) for c in CLASSES} if len(labels) else {},
        own_length=len({usual_length(p["config.train.steps"]) for p in beside_it}) > 1,
        own_horizon=len({DIARY.horizon_of(p) for p in beside_it}) > 1,
    )
    by_time = _time_findings(census)
    by_accuracy = _accuracy_findings(census)
    if not census.population.has_diary_task:  # the classes are defined for the diary's task only
        by_time = [replace(f, headline=ALWAYS not in f.label) for f in by_time]
        by_accuracy = [f for f in by_accuracy if f.label == "diverged seeds"]
    every = by_accuracy + by_time if census.population.has_diary_task else by_time + by_accuracy
    checks = [*_equal_bits(census), *_unequal(census)]
    census.findings = [*checks, *every]
    census.wrong = [*failed(observations, population), *(f.text for f in checks if f.headline)]
    census.wrong += one_by_one(observations, rows.index, most=FEW_ALONE)
    if population.chosen:
        had = f"An earlier plan trained {population.held}: its results may have chosen these fixed seeds (not counted)."
        census.wrong.append(had)
        census.notes.append(had)
    census.summary, census.lead = " ".join([_summary(census), *census.wrong]), "seed_curves"
    census.tables = [_best_table(census)]
    if code := code_needed(rows):
        census.notes.append(f'"Run it again" needs your code as these runs had it: {code}.')
    unjudged = int((rows["label"] == UNJUDGED).sum())
    if unjudged:
        census.notes.append(f"{unjudged} of {len(rows)} seeds are not judged: no evaluation at step {horizon:,}.")
    if horizon < DIARY.horizon and census.population.has_diary_task:
        census.notes.append(
            f"The runs end before step {DIARY.horizon:,}, so the diary's accuracy thresholds are applied at step "
            f"{horizon:,}, the last one that at least half of the runs reached (diverged ones count if all did)."
        )
    if census.population.has_diary_task and not census.population.is_default:
        census.notes.append(
            "The task is the diary's, but other settings differ. The thresholds of accuracy belong to the task."
        )
    if population.fixed:
        census.notes.append(f"These shares hold at {population.held}; other fixed seeds can give other shares.")
    return census


def beside(census: Census) -> dict[str, object]:
    """Return the row of one population in the table of populations."""
    reached, good = _ends(census)
    record: dict[str, object] = {"judged at step": f"{census.horizon:,}"}
    for name in CLASSES if census.population.has_diary_task else ():
        record[name] = census.shares[name].percent() if census.shares else ""
    by_time = next((f for f in census.findings if f.label == EARLY), None)
    return record | {
        f"{EARLY}, by its own median": by_time.shown if by_time else "",
        **({"trained for": f"{census.usual:,}"} if census.own_length else {}),
        "generalised": reached.percent(),
        "for good": good.percent(),
    }


def generalise_alike(reference: Census, other: Census) -> float | None:
    """Return Fisher's p that as many seeds generalised in both; None where their budgets differ."""
    if pd.concat([reference.rows, other.rows])["config.train.steps"].nunique() > 1:
        return None
    return alike(*((int(c.times.seen.sum()), len(c.times)) for c in (reference, other)))


def compare(reference: Census, other: Census) -> float | None:
    """Return Fisher's p-value that super seeds are equally frequent in both; None if their horizons differ."""
    if reference.horizon != other.horizon or not reference.shares or not other.shares:
        return None
    return alike(*((round(e.value * e.n), e.n) for e in (c.shares["super"] for c in (reference, other))))


def analyse(observations: Observations) -> Study:
    """Return the answer for every population of the store.

    Raises:
        NotEnoughData: there is none.
    """
    compared = Beside(beside, generalise_alike, "as many seeds generalised (Fisher's exact test, equal budgets only)")
    if all(p.has_diary_task for p in observations.once(populations).every):
        meaning = f"as many seeds are above {DIARY.super_accuracy:.0%} (Fisher's exact test, equal horizons only)"
        compared = Beside(beside, compare, meaning)
    study = by_population(one, compared)(observations)
    parts = [part for part in study.parts if isinstance(part, Census)]
    every = observations.once(populations).every
    if len(every) > 1:
        first, n = study.parts[0], sum(map(len, every))
        tasks = {f" on {p.task}" for p in every}
        trained = f"{n:,} runs in {len(every)} populations{tasks.pop() if len(tasks) == 1 else ''}"
        study.lead = "cumulative"
        shown, text = _range(observations, every)
        study.summary = f"{trained}: {text}"
        if len(every) > len(parts):  # the range of the parts alone would be that of a choice
            label = f"generalised, over {len(every)} populations"
            study.findings = [f for f in study.findings if not f.headline]
            study.findings.append(Finding(label, shown, study.summary, headline=True))
        if isinstance(first, Census) and 2 * len(first.rows) > n:
            study.lead = f"{first.lead}_1"
            several, more = len(parts) > 2, len(every) - len(parts)
            words = f"{len(parts) - 1} smaller population{'s are' if several else ' is'} compared below"
            study.summary = f"{first.summary} {words}{f', {more} more are not' * bool(more)}."
            parts, every = parts[1:], every[1:]
        diverged = [(p.name, int((p.rows["status"] == "diverged").sum())) for p in every]
        lost = [(name, n) for name, n in diverged if n]
        wrong = [f"{name}: {n:,} diverged." for name, n in lost]
        if len(lost) > FEW_NAMED:
            wrong = [f"{sum(n for _, n in lost):,} diverged, in {len(lost)} of them."]
        wrong += [f"{part.about}: {text}" for part in parts for text in part.wrong]
        study.summary = " ".join([study.summary, *wrong])
    return study


def _range(observations: Observations, every: Sequence[Population]) -> tuple[str, str]:
    """Return the lowest and the highest share that generalised of ``every`` population, by a step that all reached.

    Short, and as a sentence. Where each population is one run: how many generalised.
    """
    lengths = [usual_length(p.rows["config.train.steps"]) for p in every]
    step = min(lengths)
    once = f"generalised by step {step:,}" + " (some were trained for longer)" * (step < max(lengths))
    ends = [(share_by(p.rows, observations.times(p.rows).right, step), p.name) for p in every]
    if max(map(len, every)) == 1:
        seeds = {int(p.rows["seed"].iloc[0]) for p in every}
        alone = f", all of seed {seeds.pop()}" if len(seeds) == 1 else ""
        done = sum(e.value > 0 for e, _ in ends)
        return f"{done:,} of {len(ends):,}", f"{done:,} {once}. One run each{alone}: that judges no setting."
    ends.sort(key=lambda end: (end[0].value, -end[0].n))

    def told(value: float) -> str:
        same = [(e, name) for e, name in ends if e.value == value]
        ties = f" (and the same share in {len(same) - 1} more)" * (len(same) > 1)
        return f"{same[0][0].percent()} with {same[0][1]}{ties}"

    low, high = ends[0][0].value, ends[-1][0].value
    if low == high:
        halves = []
        for p in every:
            with suppress(NotEnoughData):
                halves.append((quantile(observations.times(p.rows)), p.name))
        halves.sort(key=lambda half: half[0].value)
        named = [f"half by step {half.plain()} with {name}" for half, name in halves]
        apart = [named[0], named[-1]] if len(named) > 1 else []
        return f"{low:.0%}", ", ".join([f"{told(low)} {once}", *apart, "with 95% intervals."])
    chosen = f" (the lowest and the highest of {len(every)})" * (len(every) > 2)
    text = f"from {told(low)} to {told(high)} {once}, with 95% intervals{chosen}."
    return f"{low:.0%} to {high:.0%}", text


def _summary(census: Census) -> str:
    """Return what was trained, how many, what came out and how sure."""
    n, steps = _ends(census)[0].n, census.rows["config.train.steps"]
    longer = " or more" * bool((steps > census.usual).mean() > FEW_LONGER)
    upto = "up to " * (not longer and bool((floats(census.rows["steps"]) < census.usual).mean() > FEW_LONGER))
    shorter = f" (and {len(steps) - n:,} for less)" * (n < len(steps))
    trained = f"{census.population.units(n)} trained for {upto}{census.usual:,} steps"
    if census.population.has_diary_task and census.shares:
        shares = " and ".join(f"{census.shares[name].percent()} {name}" for name in CLASSES[:2])
        low, high = f"{DIARY.normal_accuracy:.0%}", f"{DIARY.super_accuracy:.0%}"
        outcome = f"{shares} (validation accuracy above {high} and above {low} at step {census.horizon:,})"
    else:
        half = census.by_time if n >= FEWEST_OF_A_MEDIAN else None
        middle = f", half of the seeds by step {half.median.plain()}" if half else ""
        again = floats(census.rows["val_acc_dips"])[_done(census)] > 0
        most = 2 * int(again.sum()) > len(again)
        middle += f"; {int(again.sum()):,} of these fell below {GENERALISED_VAL_ACC:.0%} again" * most
        outcome = f"{_ends(census)[0].percent()} generalised{' by then' * bool(longer)}{middle}"
    sure, at = ", with 95% intervals", float(census.times.right.min())
    if len(census.rows) == 1:  # a share of one says nothing
        outcome, sure = f"it generalised at step {at:,.0f}" if np.isfinite(at) else "it did not generalise", ""
    lost = int((census.rows["status"] == "diverged").sum())
    diverged = f" {lost:,} of the {len(census.rows):,} diverged." * bool(lost)
    return f"{trained}{longer}{shorter} on {census.population.task}: {outcome}{sure}.{diverged}"


def _accuracy_findings(census: Census) -> list[Finding]:
    task, unit = census.population.task, census.population.unit
    words = {
        "super": f"had validation accuracy above {DIARY.super_accuracy:.0%} at step {census.horizon:,}",
        "fast": f"were in between ({DIARY.normal_accuracy:.0%} to {DIARY.super_accuracy:.0%})",
        "normal": f"were still below {DIARY.normal_accuracy:.0%}",
        "diverged": "diverged",
    }
    findings = []
    for name, estimate in census.shares.items():
        hits = round(estimate.value * estimate.n)
        if name == "diverged" and not hits:
            continue
        text = (
            f"{hits:,} of {census.population.units(estimate.n)} ({task}) {words[name]}: {estimate.percent()}, 95% "
            f"interval ({estimate.method})."
        )
        if name == "super" and census.population.is_default and census.population.varies in DIARY_SAYS:
            said = DIARY_SAYS[census.population.varies]
            text += f" The diary's scan, at other fixed seeds and without a number of runs: {said}."
        if name == "diverged":
            text += f" These {unit}: {_named(census.population.seeds[census.rows['label'] == name])}."
        label = f"{name} seeds"
        shown = f"{estimate.percent()}{f' at step {census.horizon:,}' * census.own_horizon}"
        findings.append(Finding(label, shown, text, estimate, headline=name != "diverged"))
        if name == "super":
            findings += [_at_any_time(estimate, label), *_held(census)]
    return findings


def _at_any_time(e: Estimate, label: str) -> Finding:
    """Return the interval for a census that may still grow, beside the one for a number that was fixed beforehand."""
    always = at_any_time(round(e.value * e.n), e.n)
    text = (
        f"The interval of {label} is one for a number of seeds that was fixed beforehand. If seeds were added until "
        f"the answer pleased, or are still added: {always.percent()}, which holds at every number of seeds."
    )
    return Finding(f"{label}{ALWAYS}", always.percent(), text, always)


def _held(census: Census) -> list[Finding]:
    """Return the share that reached the accuracy of super seeds by the horizon and had it at the next evaluation."""
    rows = census.rows[(census.rows["label"] != UNJUDGED) & census.rows["held"].notna()]
    if rows.empty:
        return []
    twice, at_step = rows["held"] == 2, rows["label"].eq("super")
    e = share(int(twice.sum()), len(rows))
    ended, dipped, lost = (int(of.sum()) for of in (rows["held"] == 1, twice & ~at_step, at_step & (rows["held"] == 0)))
    text = (
        f"{int(twice.sum()):,} of {len(rows):,} were above {DIARY.super_accuracy:.0%} at an evaluation by step "
        f"{census.horizon:,} and at the next: {e.percent()}. {dipped:,} of these had dipped then."
        + (f" {ended:,} more reached it at their last evaluation: whether they hold it is not seen." if ended else "")
        + (f" {lost:,} more were above it then and dipped at the next evaluation." if lost else "")
    )
    return [Finding("super seeds, reached and held", e.percent(), text, e)]


def _named(seeds: pd.Series) -> str:
    """Return the first of ``seeds`` by name."""
    more = len(seeds) - FEW_NAMED
    return ", ".join(map(str, seeds.head(FEW_NAMED))) + (f" and {more:,} more" if more > 0 else "")


def _equal_bits(census: Census) -> list[Finding]:
    """Return the error that different seeds have equal weights: each group of these is one result."""
    equal = census.population.equal
    if equal.empty:
        return []
    seeds, results = replace(census.population, rows=equal).seeds, equal["weights_hash"].nunique()
    every = len(census.rows) + len(equal) - results
    shown = f"{len(equal):,} of {every:,}"
    text = (
        f"Error: {shown} {census.population.unit} ended with the weights of another one, bit for bit "
        f"({_named(seeds)}). They are {results:,} result{'s' * (results > 1)} and count as {results:,}, not "
        f"{len(equal):,}: either the seed does not reach the training, or runs were copied."
    )
    return [Finding("equal bits under different seeds", shown, text, headline=True)]


def _unequal(census: Census) -> list[Finding]:
    """Return a sentence for each way of computing runs whose groups differ in an outcome, and one about all ways.

    Ways that divide the runs alike are one. p-values are corrected for the groups and, by Holm, for the tests.
    """
    rows = census.rows
    outcomes, half = {"generalised": _done(census)}, float(np.median(census.times.right))
    early = census.times.right <= half
    # if all were watched so long
    if half <= census.times.left[~census.times.seen].min(initial=np.inf) and (early != outcomes["generalised"]).any():
        outcomes[f"generalised by step {half:,.0f} (half of all)"] = early
    if census.population.has_diary_task:
        outcomes["super"] = (rows["label"] == "super").to_numpy()
    outcomes["diverged"] = (rows["status"] == "diverged").to_numpy()
    ways: dict[bytes, tuple[NDArray[np.int64], list[str], list[str]]] = {}
    for column, words in COMPUTED.items():
        if column in rows:
            codes, kinds = pd.factorize(rows[column].fillna("unknown").astype(str), sort=True)
            division = pd.factorize(codes)[0].tobytes()
            ways.setdefault(division, (codes, list(map(str, kinds)), []))[2].append(words)
    divided = [way for way in ways.values() if len(way[1]) > 1]
    if not divided:
        return []
    tests: list[tuple[str, str, list[str], list[int], Unequal]] = []
    for codes, names, columns in divided:
        for outcome, hits in outcomes.items():
            counts = np.bincount(codes, weights=hits, minlength=len(names)).astype(int).tolist()
            try:
                rng = generator(f"unequal {columns[0]} {outcome}")
                test = unequal_rates(counts, np.bincount(codes, minlength=len(names)).tolist(), rng)
            except NotEnoughData:
                continue
            tests.append((listed(columns), outcome, names, counts, test))
    findings: list[Finding] = []
    adjusted = holm([t[-1].p for t in tests])
    for (words, outcome, groups, counts, test), p in zip(tests, adjusted, strict=True):
        if p > 1 - LEVEL:
            continue
        each = sorted(zip(test.p_of, groups, counts, test.shares, strict=True), key=lambda group: group[0])
        shown = "; ".join(f"{name}: {k:,} of {e.n:,}, {e.percent()}" for _, name, k, e in each[:FEW_NAMED])
        shown += f"; and {len(each) - FEW_NAMED:,} more" * (len(each) > FEW_NAMED)
        text = f"The {words} differ in the share that is {outcome} (p = {p:.2g}): {shown}."
        text += " So one share over all of them is about none of them." * (not findings)
        findings.append(Finding(f"{words} differ, {outcome}", f"p = {p:.2g}", text, headline=True))
    compared = listed([f"{len(names):,} {listed(columns)}" for _, names, columns in divided])
    least = f"p = {min(adjusted):.2g}" if tests else "no test"
    verdict = f"{len(findings):,} of {len(tests):,} tests reject it; the smallest {least}, corrected for all of them"
    tested = listed([*(dict.fromkeys(t[1] for t in tests) or outcomes)], "or")
    text = (
        f"These seeds were computed by {compared}. Are as many {tested} in each? "
        f"{verdict if tests else 'No test: the seeds do not differ in this'}."
    )
    return [*findings, Finding("ways of computing", least, text)]


def _time_findings(census: Census) -> list[Finding]:
    done = _ends(census)[0]
    n, seen = done.n, round(done.value * done.n)
    longer = floats(census.rows["config.train.steps"]).max() > census.usual
    by = f"by step {census.usual:,}"
    budget = by if longer or census.own_length else "within their budget"
    text = (
        f"{seen:,} of {census.population.units(n)} generalised {budget} (validation accuracy of at least "
        f"{GENERALISED_VAL_ACC:.0%} at {PERSISTENCE} evaluations in a row, or at the last): {done.percent()}."
    )
    generalised = Finding("generalised", f"{done.percent()}{f' {by}' * census.own_length}", text, done)
    try:
        census.by_time = judge_by_time(census.times, floats(census.rows["config.train.steps"]))
    except NotEnoughData as gap:
        census.notes.append(f"Early seeds (3 times faster than the median): not enough data, needs {gap.needs}.")
        return [generalised]
    verdict = census.by_time
    judged_seeds, hits = int(verdict.judged.sum()), int(verdict.is_early.sum())
    if not judged_seeds or not census.curves["step"].between(1, verdict.threshold).any():  # no seed could be early
        return [generalised]
    estimate = share(hits, judged_seeds)
    text = (
        f"{hits:,} of {judged_seeds:,} seeds were early: they generalised by step {verdict.threshold:,.0f}, at least "
        f"{DIARY.speedup:.0f} times faster than the median seed: {estimate.percent()}."
    )
    by_time = Finding(EARLY, estimate.percent(), text, estimate, headline=True)
    always = [] if census.population.has_diary_task else [_at_any_time(estimate, by_time.label)]
    return [by_time, *always, generalised]


def _ends(census: Census, step: int | None = None) -> tuple[Estimate, Estimate]:
    """Return the share that generalised by ``step`` (the usual length), and the share that did so for good."""
    step = step or census.usual
    of = census.rows
    return share_by(of, census.times.right, step), share_by(of, floats(of["grokked_for_good_step"]), step)


def _done(census: Census) -> NDArray[np.bool_]:
    """Return whether each seed generalised by that step: a few longer runs would raise the share by theirs alone."""
    return np.asarray(census.times.right <= census.usual)


def _best_table(census: Census) -> Table:
    seeds = census.population.seeds
    rows = census.rows.assign(when=np.where(_done(census), census.times.right, np.inf), drawn=seeds)
    best = (
        rows[rows["status"] != "diverged"]
        .sort_values(["when", "accuracy", "drawn"], ascending=[True, False, True])
        .head(BEST)
    )
    when = [f"{w:,.0f}" if np.isfinite(w) else "not yet" for w in best["when"]]
    named = "seed" if census.population.from_masters else f"{census.population.varies[0]} seed"
    frame = pd.DataFrame(
        {
            named: best["drawn"].to_numpy(),
            "run": [r[:10] for r in best.index],
            "class": best["label"].to_numpy(),
            "generalised at step": when,
            "for good from step": [
                f"{w:,.0f}" if np.isfinite(w) else "no" for w in floats(best["grokked_for_good_step"])
            ],
            f"val accuracy at {census.horizon:,}": [f"{a:.3f}" if np.isfinite(a) else "" for a in best["accuracy"]],
            "run it again": [rerun_command(row) for _, row in best.iterrows()],
        }
    )
    if not census.population.has_diary_task:
        frame = frame.drop(columns="class")  # the classes are defined for the diary's task only
    caption = "The best seeds of this census"
    if np.isfinite(best["when"]).any():
        caption += ". They were chosen as the best, so part of their speed is chance: repeat one before you rely on it"
    else:
        caption += ", none of which generalised"
    return Table("best_seeds", caption, frame, code=("run", "run it again"))


QUESTION = Question(
    "census",
    "Seed census",
    "How many seeds generalise, and how many of them early?",
    "grok sweep sweep=census",
    analyse,
    has_populations,
    reads_designs=True,
    of_seeds=True,
)
