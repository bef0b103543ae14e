"""Repeatability of super seeds: repeats of candidates, compared with the rate of other seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd

from analysis.observations import Observations, describe_task, floats
from analysis.populations import listed
from analysis.purposes import STREAMS, places, roles
from analysis.statistics.estimate import Estimate, NotEnoughData
from analysis.statistics.proportions import clopper_pearson, heterogeneity
from analysis.statistics.repeatability import agreement
from analysis.statistics.replication import MOST, Replication, Verdict, mean_share, replication
from analysis.statistics.resampling import generator
from analysis.statistics.spread import median
from analysis.studies.base import Finding, Question, Study, Table
from analysis.studies.hits import FEWEST_OTHERS
from analysis.studies.outcomes import outcome
from analysis.studies.repeats import FEWEST_CONTROLS, kinds
from analysis.studies.units import Kind, Unit

FEWEST = 5
"""Smallest number of seeds for a rank correlation."""
UNCHOSEN = 0.5
"""Smallest share of a condition's seeds with repeats for a rank correlation: a few chosen seeds would bias it."""
FEWEST_MARGIN = 6
"""Smallest number of candidates that are divided by the accuracy of their own run."""
LEVEL_STREAMS = 0.05
"""Largest p-value by which the counts of redrawn streams differ."""
MOST_KINDS = 12
"""Largest number of kinds of repeat with a card."""


@dataclass(frozen=True)
class Test:
    """One kind of repeat and its result."""

    kind: Kind
    result: Replication
    units: pd.DataFrame
    """Per candidate: seeds, hits, runs, share with interval, p, verdict."""
    controls: Estimate | None
    """Mean share of hits among the controls' repeats."""
    agreement: Estimate | None
    """Rank correlation of speed between two repeats over all seeds; None if few seeds were repeated."""

    @property
    def name(self) -> str:
        """The kind's name, with its condition if there are several."""
        return self.kind.name + (f" ({self.kind.condition})" if self.kind.condition else "")

    @property
    def free(self) -> tuple[str, ...]:
        """The streams that a repeat redraws."""
        return tuple(s for s in STREAMS if s not in self.kind.fixed)


@dataclass(kw_only=True)
class Repeats(Study):
    """The results of each kind of repeat."""

    tests: list[Test]


def analyse(observations: Observations, question: Question) -> Repeats:
    """Return the answer for every kind of repeat.

    Raises:
        NotEnoughData: no run repeats a candidate.
    """
    every = observations.once(kinds)
    if not every:
        raise NotEnoughData("repeats of a seed whose own run is super, or named seeds repeated with perturb.ulps=1")
    about = ""
    if len({kind.condition for kind in every}) == 1:  # the study is about one condition: no kind has to name it
        about = every[0].condition
        every = [replace(kind, condition="") for kind in every]
    tests = [_test(observations, kind) for kind in every]
    study = Repeats(name=question.name, title=question.title, question=question.question, about=about, tests=tests)
    hits = dict.fromkeys(f"{t.kind.hit.words}: {t.kind.hit.definition}" for t in tests)
    tasks = dict.fromkeys(describe_task(t.kind.rows.iloc[0]) for t in tests)
    study.notes.append(f"Task: {'; '.join(tasks)}. Definition: {'; '.join(hits)}.")
    study.notes.append(
        "The run that made a seed a candidate is never counted among its repeats. Two tests judge candidates: Fisher's "
        "exact test of its repeats against other seeds (more often than others), and the exact binomial test against "
        "one half (in most repeats). Both use a false-discovery rate of 5% over the candidates of one kind of repeat. "
        "Fisher's test of all of them together has a level of 5%. Several kinds are not corrected for their number."
    )
    study.notes += observations.once(roles).said
    if any(len(test.free) > 1 for test in tests):
        study.notes.append("If two streams are redrawn, the counted repeats share no seed of either stream.")
    for i, test in enumerate(tests):
        _findings(study, test, headline=i < MOST_KINDS)
    study.findings += _between_streams(tests)
    for test in tests:
        if test.kind.name == "ulp" and (seen := _divergence(observations, test.kind)) is not None:
            study.findings.append(seen[0])
            study.tables.append(seen[1])
    return study


def _held(test: Test) -> list[Finding]:
    """Return how many repeats reached the accuracy and held it, and when they generalised: one step can be a dip."""
    kind = test.kind
    if kind.hit.judged is None:
        return []
    rows = kind.hit.judged.loc[[run for unit in kind.candidates for run in unit.repeats]]
    held, done = rows["held"].dropna() > 0, rows["generalised"][np.isfinite(rows["generalised"])]
    if held.empty:
        return []
    e = clopper_pearson(int(held.sum()), len(held))
    shown = f"{int(held.sum())} of {len(held)}"
    text = (
        f"{what_repeats(kind)}: {shown} repeats had that accuracy at an evaluation by then and at the next, if one "
        f"follows: {e.percent(0)}. {len(done)} of {len(rows)} generalised by then"
        + (f", half of these by step {done.median():,.0f}." if len(done) else ".")
    )
    return [Finding(f"{kind.hit.words} reached and held, {test.name}", shown, text, e, listed=not test.free)]


Groups = dict[str, list[tuple[Unit, list[str]]]]
"""Candidates with some of their repeats, by what the group is in words."""


def _apart(test: Test, name: str, by: str, groups: Groups) -> list[Finding]:
    """Return the repeats of each group with their own count."""
    kind, shown, text = test.kind, [], []
    for words, its in groups.items():
        counts = [kind.hit.counts(runs) for _, runs in its]
        hits, runs = (sum(column) for column in zip(*counts, strict=True))
        shown.append(f"{hits} of {runs} {words}")
        mean = mean_share(counts, [unit.line for unit, _ in its])
        text.append(f"{shown[-1]} ({mean.percent(0)} of all such seeds' repeats)")
    label = f"{kind.hit.words} again by {name}, {test.name}"
    return [
        Finding(label, "; ".join(shown), f"{what_repeats(kind)}, by {by}: {'; '.join(text)}.", listed=not test.free)
    ]


def _by_device(test: Test) -> list[Finding]:
    """Return the repeats on the device of the own run, and those on another one."""
    groups: Groups = {}
    device = test.kind.rows["device"].to_dict()
    for unit in (unit for unit in test.kind.candidates if unit.own is not None):
        own = device[unit.own]
        for here in sorted({device[run] for run in unit.repeats}):
            words = f"on {own}, as before" if own == here else f"on {here} after {own}"
            groups.setdefault(words, []).append((unit, [run for run in unit.repeats if device[run] == here]))
    moved = any("after" in words for words in groups)
    return _apart(test, "device", "the devices of the repeat and of the own run", groups) if moved else []


def _by_margin(test: Test) -> list[Finding]:
    """Return the repeats of candidates whose own run was just above the threshold, and of those far above it.

    The bound is the median of the candidates' own accuracies.
    """
    kind, judged = test.kind, test.kind.hit.judged
    units = [unit for unit in kind.candidates if unit.own is not None]
    if test.free or "=" in kind.name or judged is None or len(units) < FEWEST_MARGIN:
        return []
    own = judged["accuracy"][[str(unit.own) for unit in units]].to_numpy(dtype=float)
    bound, groups = float(np.median(own)), Groups()
    for unit, accuracy in sorted(zip(units, own, strict=True), key=lambda pair: pair[1] > bound):
        words = f"where it was {'above' if accuracy > bound else 'up to'} {bound:.2%}"
        groups.setdefault(words, []).append((unit, unit.repeats))
    return _apart(test, "margin", "the accuracy of the candidate's own run", groups) if len(groups) > 1 else []


def _divergence(observations: Observations, kind: Kind) -> tuple[Finding, Table] | None:
    """Return how far runs that differ by a unit in the last place are apart, by step: candidates, and unchosen seeds.

    Unchosen are ordinary controls and the cells of crossed seeds. A seed counts once, with the mean of its pairs. Only
    runs of one numerics tag are compared. None: no seed has two.
    """
    runs, place = observations.observed, observations.once(places)
    cells = place.index.intersection(observations.once(roles).of("cell", kinds=("crossed",))["run_id"].tolist())
    label = observations.conditions(runs)
    cells = cells[label[cells] == label[kind.candidates[0].repeats[0]]]
    crossed = place[cells].groupby(place[cells]).groups.values()
    groups = {
        "candidates": [unit.repeats for unit in kind.candidates],
        "unchosen seeds": [*(unit.repeats for unit in kind.controls), *map(list, crossed)],
    }
    curves = observations.curves_of([run for seeds in groups.values() for its in seeds for run in its])
    curves = curves[curves["val_loss"] > 0].assign(log_loss=lambda rows: np.log(floats(rows["val_loss"])))
    loss = curves.pivot_table(index="step", columns="run_id", values="log_loss").dropna()
    tag = runs["numerics"].to_dict()
    records, shown = [], []
    for name, seeds in groups.items():
        pairs = [list(combinations(loss.columns.intersection(its), 2)) for its in seeds]
        pairs = [[(a, b) for a, b in mine if tag[a] == tag[b]] for mine in pairs]
        apart = np.array([np.mean([(loss[a] - loss[b]).abs() for a, b in mine], 0) for mine in pairs if mine])
        if not apart.size:
            continue
        medians = dict(zip(loss.index, map(median, apart.T), strict=True))
        records += [
            {"step": step, "seeds": name, "n": e.n, "median": e.value, "low": e.low, "high": e.high}
            for step, e in medians.items()
        ]
        thirds = [list(medians)[i] for i in (-1 - 2 * (len(loss) // 3), -1 - len(loss) // 3, -1)]
        parts = [f"{e.value:.1g} ({e.low:.1g} to {e.high:.1g}) at step {k:,}" for k in thirds for e in [medians[k]]]
        shown.append(f"{len(apart)} {name} {', '.join(parts)}")
    if not shown:
        return None
    text = (
        "Runs that start a unit in the last place apart drift apart for as long as they train. Median distance of two "
        f"runs of a seed, in the log of the validation loss: {'; '.join(shown)}. So shares of repeats that hit again, "
        "and of chaos, are about one step."
    )
    caption = "Distance of runs that start a unit in the last place apart, by step (log of the validation loss)"
    return Finding("divergence by step", "; ".join(shown), text), Table(
        "divergence", caption, pd.DataFrame(records), False
    )


def _between_streams(tests: Sequence[Test]) -> list[Finding]:
    """Return whether repeats hit equally often whichever single stream is redrawn, for each condition.

    The runs of one line with one stream redrawn are moved together: a few lines can have most of the hits.
    """
    findings = []
    for condition in dict.fromkeys(test.kind.condition for test in tests):
        mine = [test for test in tests if test.kind.condition == condition and len(test.free) == 1]
        runs = [(i, unit.line, unit.repeats, test) for i, test in enumerate(mine) for unit in test.kind.candidates]
        hits = [(flag, i, line) for i, line, its, test in runs for flag in test.kind.hit.flags[its].dropna()]
        if len(mine) < 2 or not hits:
            continue
        flags, streams, lines = (np.array(column) for column in zip(*hits, strict=True))
        blocks = np.unique(lines, return_inverse=True)[1]
        try:
            p = heterogeneity(flags > 0, streams, generator(f"between streams {condition}"), blocks=[blocks]).p
        except NotEnoughData:
            continue
        shown = listed(
            [f"{int(t.units['again'].sum())} of {int(t.units['of'].sum())} with a new {t.free[0]}" for t in mine]
        )
        verdict = "do not tell the streams apart" if p > LEVEL_STREAMS else "differ between the streams"
        text = f"{shown}: these counts {verdict} (permuted within lines of descent, p = {p:.2g})."
        label = "one stream redrawn" + (f" ({condition})" if condition else "")
        findings.append(Finding(label, f"p = {p:.2g}", text))
    return findings


def _test(observations: Observations, kind: Kind) -> Test:
    counts = [kind.hit.counts(unit.repeats) for unit in kind.candidates]
    bases = [kind.hit.counts(unit.others) if unit.others else None for unit in kind.candidates]
    result = replication(counts, bases, [unit.line for unit in kind.candidates])
    records = [
        {
            "candidate": unit.name,
            **{f"seed_{stream}": str(seed) for stream, seed in unit.seeds.items()},
            "chosen by": f"run {unit.own[:10]}" if unit.own else "name",
            "again": hits,
            "of": runs,
            "share": c.again.value,
            "low": c.again.low,
            "high": c.again.high,
            "other seeds": "" if c.base is None else c.base.percent(),
            "p": None if c.p_more is None else float(f"{c.p_more:.2g}"),
            "verdict": _WORDS[c.verdict],
        }
        for unit, (hits, runs), c in zip(kind.candidates, counts, result.candidates, strict=True)
    ]
    units = pd.DataFrame(records).sort_values(["share", "of"], ascending=False, kind="stable").reset_index(drop=True)
    ordinary = [kind.hit.counts(unit.repeats) for unit in kind.controls]
    controls = mean_share(ordinary, [unit.line for unit in kind.controls]) if ordinary else None
    return Test(kind, result, units, controls, _agreement(observations, kind))


MOST_REPEATS = "in most repeats"
MORE_OFTEN = "more often than other seeds"
_WORDS = {
    Verdict.MOST: MOST_REPEATS,
    Verdict.MORE: MORE_OFTEN,
    Verdict.NO_SIGN: "no sign of it",
    Verdict.UNKNOWN: "too few repeats to tell",
}


def _agreement(observations: Observations, kind: Kind) -> Estimate | None:
    """Return the rank correlation of speed between a seed's runs; None if few seeds of the condition have repeats."""
    units = [*kind.candidates, *kind.controls, *kind.neither]
    if len(kind.fixed) < len(STREAMS) or len(units) < FEWEST:
        return None
    seeds = kind.rows[kind.rows["config.perturb.ulps"].fillna(0) == 0].groupby(
        ["seed_split", "seed_init", "seed_order"]
    )
    if len(units) < UNCHOSEN * seeds.ngroups:
        return None
    runs = [[*([unit.own] if unit.own else []), *unit.repeats] for unit in units]
    rows = kind.rows.loc[[run for mine in runs for run in mine]]
    try:
        seen = dict(zip(rows.index, outcome(observations, rows).values, strict=True))
        table = np.full((len(runs), max(map(len, runs))), np.nan)
        for i, mine in enumerate(runs):
            table[i, : len(mine)] = [seen[run] for run in mine]
        return agreement(table, generator(f"agreement {kind.name}"))
    except NotEnoughData:
        return None


def what_repeats(kind: Kind) -> str:
    """Return which seeds a repeat keeps and what it changes, in words."""
    if len(kind.fixed) == len(STREAMS):
        return f"All seeds kept, {kind.change}"
    return f"{listed(kind.fixed).capitalize()} seed{'s' * (len(kind.fixed) > 1)} kept, {kind.change}"


def verdict(test: Test) -> str:
    """Return the conclusion from the repeats, as a clause."""
    result, hit, n = test.result, test.kind.hit.words, len(test.kind.candidates)
    if "=" in test.kind.name:
        return _verdict_elsewhere(test)
    kept = list(test.kind.fixed)
    streams = "the seed's streams" if not test.free else f"the {listed(kept)} seed{'s' * (len(kept) > 1)}"
    if result.verdict is Verdict.MOST:
        return f"being {hit} is a property of {streams}"
    called = result.count(Verdict.MOST, Verdict.MORE)
    if not called and result.pooled.low > MOST:
        return f"each candidate has too few repeats to be judged alone, but together most of their repeats are {hit}"
    if result.verdict is Verdict.MORE:
        who = f"{called} of {n} candidates {'is' if called == 1 else 'are'}" if n > 1 else "the candidate is"
        who = who if called else "together the candidates are"
        others = "chance matters, too"
        if test.free:
            many = len(test.free) > 1
            others = f"the {listed(test.free)} seed{'s' * many} matter{'s' * (not many)}, too"
        most = "most repeats are not" if result.pooled.high < MOST else "not proven to be in most repeats"
        return f"{who} {hit} more often than other seeds, but {most}: {others}"
    if result.verdict is Verdict.NO_SIGN:
        return f"no sign that being {hit} is a property of {streams}: most repeats are not"
    return "too few repeats to distinguish chance from a property of the seed"


def _verdict_elsewhere(test: Test) -> str:
    """Return the conclusion from repeats under another setting: the seeds were chosen under the first one."""
    result, hit, n = test.result, test.kind.hit.words, len(test.kind.candidates)
    if result.verdict is Verdict.MOST:
        return f"these seeds are {hit} with this setting, too"
    if result.verdict is Verdict.NO_SIGN:
        return f"most of these seeds are not {hit} with this setting"
    if result.verdict is Verdict.MORE:
        called = result.count(Verdict.MOST, Verdict.MORE)
        who = f"{called} of {n} candidates are" if called else "together these seeds are"
        return f"{who} {hit} more often than other seeds with this setting"
    return f"too few repeats to tell whether these seeds are {hit} with this setting"


def _findings(study: Repeats, test: Test, headline: bool) -> None:
    kind, result = test.kind, test.result
    hits, runs = int(test.units["again"].sum()), int(test.units["of"].sum())
    hit, n = kind.hit.words, len(kind.candidates)
    shown = f"{hits} of {runs}"
    text = (
        f"{what_repeats(kind)}: {n} candidate{'s' * (n > 1)}, {hit} again in {shown} repeats, "
        f"{result.pooled.percent(0)}; {verdict(test)}."
    )
    beside: list[Finding] = []
    if kind.hit.judged is not None:  # a threshold alone does not tell a near miss from an ordinary run
        again = kind.hit.judged["accuracy"][[run for unit in kind.candidates for run in unit.repeats]]
        value = f"{again.median():.1%} in the median, {again.min():.1%} at least"
        about = f"The validation accuracy of these repeats is {value}."
        text += f" {about}"
        beside.append(Finding(f"accuracy of repeats, {test.name}", value, about, listed=False))
        beside += [*_held(test), *_by_device(test), *_by_margin(test)]
    judged = zip(result.candidates, kind.candidates, strict=True)
    bases = sorted({(c.base.percent(), unit.others_words) for c, unit in judged if c.base is not None})
    if bases:
        text += " Other seeds: " + "; ".join(f"{share} of {words}" for share, words in bases) + "."
    else:
        where = {"precision": " in this precision"}.get(kind.name, " with this setting" if "=" in kind.name else "")
        few = f"{FEWEST_CONTROLS} ordinary controls were repeated{where}" if where else f"{FEWEST_OTHERS} random seeds"
        text += f" Fewer than {few}: the rate of other seeds is not compared."
    if result.mean is not None:
        m = result.mean
        text += f" Estimate for all such seeds: {m.percent(0)} of a seed's repeats."
    elif n > 1:
        text += " The candidates share streams, so they do not tell how other such seeds behave."
    if test.controls is not None:
        ordinary = len(kind.controls)
        share = test.controls.percent(0)
        text += f" Ordinary controls: {share} of the repeats of {ordinary} seed{'s' * (ordinary > 1)}."
    label = f"{hit} again, {test.name}"
    study.findings += [Finding(label, shown, text, result.pooled, headline=headline), *beside]
    if test.agreement is not None:
        a = test.agreement
        value = f"{a.value:.2f} ({a.low:.2f} to {a.high:.2f})"
        study.findings.append(
            Finding(
                f"rank correlation, {test.name}",
                value,
                f"{what_repeats(kind)}: rank correlation of speed between two runs of a seed {value}, over {a.n} seeds "
                "(1: fast seeds are fast again; 0: a repeat is like a new seed).",
                a,
            )
        )
    name = test.name.replace(" + ", "_").replace(" ", "_")
    table = test.units.assign(**{c: (100 * test.units[c]).round(1) for c in ("share", "low", "high")})
    table = table.rename(columns={"share": "share %", "low": "low %", "high": "high %"})
    caption = f"Candidates repeated: {what_repeats(kind).lower()}"
    study.tables.append(
        Table(
            f"again_{name}", caption, table, open=n <= 20 and not any(t.name.startswith("again_") for t in study.tables)
        )
    )


QUESTION = Question(
    "repeatability",
    "Is it the seed?",
    "Does a fast seed stay fast when the run is repeated under other conditions?",
    "grok repeat --best 12",
    analyse,
    lambda observations: bool(observations.once(kinds)),
    reads_designs=True,
    any_task=False,
)
