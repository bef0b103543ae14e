"""Repeatability of super seeds: repeats of candidates, compared with the rate of other seeds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from math import factorial

import numpy as np
import pandas as pd

from grok.analysis.observations import Observations, describe_task, floats, how_many, listed
from grok.analysis.purposes import places, roles
from grok.analysis.statistics.estimate import FEWEST_OF_A_MEDIAN, NotEnoughData, generator, median_interval
from grok.analysis.statistics.proportions import clopper_pearson, heterogeneity, unequal_rates
from grok.analysis.statistics.repeatability import MOST, RATE, Replication, Verdict, mean_share, replication
from grok.analysis.studies.base import ALARM, Finding, Question, Study, Table
from grok.analysis.studies.repeats import FEWEST_CONTROLS, FEWEST_OTHERS, Kind, Unit, kinds, linked, repeats
from grok.streams import RUN_STREAMS

FEWEST_MARGIN = 6
"""Smallest number of candidates that are divided by the accuracy of their own run."""


@dataclass(frozen=True)
class Test:
    """One kind of repeat and its result."""

    kind: Kind
    result: Replication
    units: pd.DataFrame
    """Per candidate: seeds, hits, runs, share with interval, p, verdict."""

    @property
    def name(self) -> str:
        """The kind's name, or the streams that are kept, with its condition if there are several."""
        kept = " kept" if self.free else ""
        return self.kind.name + kept + (f" ({self.kind.condition})" if self.kind.condition else "")

    @property
    def free(self) -> tuple[str, ...]:
        """The streams that a repeat redraws."""
        return tuple(s for s in RUN_STREAMS if s not in self.kind.fixed)


@dataclass(kw_only=True)
class Repeats(Study):
    """The results of each kind of repeat."""

    tests: list[Test]


def analyse(observations: Observations) -> Repeats:
    """Return the answer for every kind of repeat.

    Raises:
        NotEnoughData: no run repeats a candidate, or what the other seeds' runs were for is unknown.
    """
    (every, gaps), left = observations.once(kinds), observations.once(repeats).attrs["left"]
    if not every and left:
        raise NotEnoughData(f"the rows in designs/ of the own runs of {left:,} repeats")
    if not every:
        n = observations.once(repeats)["own"].nunique()
        needs = f"repeats, of other bits, of a seed that is super or as rare; of {n} repeated ones none is"
        raise NotEnoughData(needs, command="grok sweep sweep=census" * bool(n))
    about = ""
    if len({kind.condition for kind in every}) == 1:  # the study is about one condition: no kind has to name it
        about = every[0].condition
        every = [replace(kind, condition="") for kind in every]
    tests = [_test(kind, RATE / len(every)) for kind in every]  # of chance alone one store in twenty has a sign
    study = Repeats(about=about, tests=tests, counted=[run for kind in every for run in kind.rows.index])
    hits = dict.fromkeys(f"{t.kind.hit.words}: {t.kind.hit.definition}" for t in tests)
    tasks = dict.fromkeys(describe_task(t.kind.rows.iloc[0]) for t in tests)
    study.notes.append(f"Task: {'; '.join([*tasks, *[about] * bool(about)])}. Definition: {'; '.join(hits)}.")
    study.notes.append(
        "The run that made a seed a candidate is never counted among its repeats. Two tests judge candidates: Fisher's "
        "exact test of its repeats against other seeds (more often than others), and the exact binomial test against "
        "one half (in most repeats). Both use a false-discovery rate of 5%, and Fisher's test of all of them together "
        "a level of 5%, which the kinds of repeat share out among them."
    )
    if any(len(test.free) > 1 for test in tests):
        study.notes.append("If two streams are redrawn, the counted repeats share no seed of either stream.")
    study.notes += [f"Repeats at {name} are left out. They need {needs}." for name, needs in gaps.items()]
    if left:
        study.notes.append(f"Repeats left out because no row says what their seed's own run was for: {left:,}.")
    units = [unit for kind in every for unit in [*kind.candidates, *kind.controls]]
    n = observations.once(repeats)["run"].nunique()
    if not gaps and (lost := n - len({run for unit in units for run in unit.repeats})):
        study.notes.append(
            f"Of {n:,} repeats {lost:,} count nowhere: of chosen seeds that are no hit, of equal bits, with a redrawn "
            "seed in common, or not judged."
        )
    for test in tests:
        _findings(study, test)
    if len(tests) > 1:  # on the first screen one of several kinds alone would be a choice
        leads = [finding for finding in study.findings if finding.headline]
        beside = leads[0].short.partition(" for the candidates")[2]
        short = f"{'; '.join(f'{finding.label}: {finding.shown}' for finding in leads)}{beside}"
        study.findings[study.findings.index(leads[0])] = replace(leads[0], short=short[0].upper() + short[1:])
    study.findings += _between_streams(tests)
    for test in tests:
        if test.kind.name == "ulp" and (seen := _divergence(observations, test.kind)) is not None:
            study.findings.append(seen[0])
            study.tables.append(seen[1])
    return study


def _held(test: Test) -> list[Finding]:
    """Return how many repeats reached the accuracy and held it, and when they generalised: one step can be a dip."""
    kind = test.kind
    assert kind.hit.judged is not None  # or nobody asks
    rows = kind.hit.judged.loc[[run for unit in kind.candidates for run in unit.repeats]]
    held, done = rows["held"].dropna() == 2, rows["generalised"][np.isfinite(rows["generalised"])]
    if held.empty:
        return []
    e = clopper_pearson(int(held.sum()), len(held))
    shown = f"{int(held.sum())} of {len(held)}"
    dipped = int((held & kind.hit.flags[held.index].ne(1)).sum())
    short = f" {shown} reached and held that accuracy by then; {dipped} of these had dipped at the step of the count."
    text = (
        f"{what_repeats(kind)}: {shown} repeats had that accuracy at an evaluation by then and at the next: "
        f"{e.percent(0)}; {int((rows['held'] == 1).sum())} more reached it at their last. {len(done)} of {len(rows)} "
        "generalised by then" + (f", half of these by step {done.median():,.0f}." if len(done) > 1 else ".")
    )
    label = f"{kind.hit.words} reached and held, {test.name}"
    return [Finding(label, shown, text, e, listed=not test.free, short=short * bool(dipped))]


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
        text.append(f"{shown[-1]} ({mean.percent(0)} with the seed as the unit)")
    label = f"{kind.hit.words} again by {name}, {test.name}"
    return [
        Finding(label, "; ".join(shown), f"{what_repeats(kind)}, by {by}: {'; '.join(text)}.", listed=not test.free)
    ]


def _by_device(test: Test) -> list[Finding]:
    """Return the repeats on the processor of the own run, and those on another one."""
    groups: Groups = {}
    device, moved = test.kind.rows["device"].to_dict(), set(test.kind.moved)
    for unit in (unit for unit in test.kind.candidates if unit.owns):
        own, by_words = device[unit.owns[0]], dict[str, list[str]]()
        for run in unit.repeats:
            words = f"on {device[run]} after {own}" if device[run] != own else f"on another {own}"
            by_words.setdefault(words if run in moved else f"on {own}, as before", []).append(run)
        for words, runs in sorted(by_words.items()):
            groups.setdefault(words, []).append((unit, runs))
    return (
        _apart(test, "device", "the processors of the repeat and of the own run", groups)
        if moved and test.kind.name != "processor"
        else []
    )


def _by_margin(test: Test) -> list[Finding]:
    """Return the repeats of candidates whose own run was just above the threshold, and of those far above it.

    The bound is the median of the candidates' own accuracies, cut to the digits that are shown.
    """
    kind, judged = test.kind, test.kind.hit.judged
    units = [unit for unit in kind.candidates if unit.owns]
    if test.free or "=" in kind.name or judged is None or len(units) < FEWEST_MARGIN:
        return []
    own = judged["accuracy"][[unit.owns[0] for unit in units]].to_numpy(dtype=float).round(4)  # as it is shown
    bound, groups = float(np.floor(1e4 * np.median(own) + 1e-6) / 1e4), Groups()
    for unit, accuracy in sorted(zip(units, own, strict=True), key=lambda pair: pair[1] > bound):
        words = f"where it was {'above' if accuracy > bound else 'up to'} {bound:.2%}"
        groups.setdefault(words, []).append((unit, unit.repeats))
    return _apart(test, "margin", "the accuracy of the candidate's own run", groups) if len(groups) > 1 else []


def _divergence(observations: Observations, kind: Kind) -> tuple[Finding, Table] | None:
    """Return how far runs that differ by a unit in the last place are apart, by step: candidates, controls, cells.

    A seed counts once, with the mean of its pairs. Only runs of one numerics tag are compared. Crossed cells share
    streams, so they have a range and no interval. Diverged runs are left out. None: no seed has two runs.
    """
    runs, place = observations.observed, observations.once(places)
    cells = place.index.intersection(observations.once(roles).of("cell", kinds=("crossed",))["run_id"].tolist())
    label = observations.conditions(runs)
    cells = cells[label[cells] == label[kind.candidates[0].repeats[0]]]
    crossed = place[cells].groupby(place[cells]).groups.values()
    groups = {
        "candidates": [unit.repeats for unit in kind.candidates],
        "controls": [unit.repeats for unit in kind.controls],
        "crossed cells": list(map(list, crossed)),
    }
    curves = observations.curves_of([run for seeds in groups.values() for its in seeds for run in its])
    curves = curves[curves["val_loss"] > 0].assign(log_loss=lambda rows: np.log(floats(rows["val_loss"])))
    curves = curves[~curves["run_id"].isin(runs.index[runs["status"] == "diverged"])]
    loss = curves.pivot_table(index="step", columns="run_id", values="log_loss").dropna()
    tag = runs["numerics"].to_dict()
    tables, shown = [], []
    for name, seeds in groups.items():
        pairs = [list(combinations(loss.columns.intersection(its), 2)) for its in seeds]
        pairs = [[(a, b) for a, b in mine if tag[a] == tag[b]] for mine in pairs]
        apart = np.array([np.mean([(loss[a] - loss[b]).abs() for a, b in mine], 0) for mine in pairs if mine])
        if not apart.size:
            continue
        table = pd.DataFrame([median_interval(distances).as_json() for distances in apart.T])
        table = table.assign(step=loss.index, seeds=name, lowest=apart.min(0), highest=apart.max(0))
        told = len(apart) >= FEWEST_OF_A_MEDIAN and name != "crossed cells"
        low, high = ("low", "high") if told else ("lowest", "highest")
        parts = [
            f"{row['value']:.1g}{f' ({row[low]:.1g} to {row[high]:.1g})' * (len(apart) > 1)} at step {row['step']:,}"
            for row in table.iloc[[-1 - 2 * (len(loss) // 3), -1 - len(loss) // 3, -1]].to_dict("records")
        ]
        several = name if len(apart) > 1 else name.removesuffix("s")
        shown.append(
            f"{len(apart)} {several}{', with their range,' * (not told and len(apart) > 1)} {', '.join(parts)}"
        )
        tables.append(table if told else table.assign(low=None, high=None))
    if not shown:
        return None
    text = (
        "Mean distance of a seed's runs that start units in the last place apart, median over seeds, in log validation "
        f"loss{f' ({kind.condition})' if kind.condition else ''}: {'; '.join(shown)}."
    )
    caption = "Distance of runs that start units in the last place apart, by step (log of the validation loss)"
    order = ["step", "seeds", "n", "median", "low", "high", "lowest", "highest"]
    frame = pd.concat(tables).rename(columns={"value": "median"})[order].astype({"low": float, "high": float})
    return Finding("divergence by step", "; ".join(shown), text), Table("divergence", caption, frame, False)


def _between_streams(tests: Sequence[Test]) -> list[Finding]:
    """Return whether repeats hit equally often whichever single stream is redrawn, for each condition.

    The runs of one line with one stream redrawn are moved together: a few lines can have most of the hits. Seeds of
    several kinds that have an own run in common are one line.
    """
    findings = []
    for condition in dict.fromkeys(test.kind.condition for test in tests):
        mine = [test for test in tests if test.kind.condition == condition and len(test.free) == 1]
        if len(mine) < 2:
            continue
        every = [(i, unit) for i, test in enumerate(mine) for unit in test.kind.candidates]
        named, owns = zip(*((unit.line, own) for _, unit in every for own in unit.owns), strict=True)
        line = dict(zip(named, linked(named, owns), strict=True))
        hits = [(flag, i, line[unit.line]) for i, unit in every for flag in mine[i].kind.hit.flags[unit.repeats]]
        flags, streams, lines = (np.array(column) for column in zip(*hits, strict=True))
        blocks = np.unique(lines, return_inverse=True)[1]
        try:
            purpose = generator(f"between streams {condition}")
            p = heterogeneity(flags > 0, streams, purpose, draws=10_000, blocks=[blocks]).p
        except NotEnoughData:
            continue
        shown = listed(
            [f"{int(t.units['again'].sum())} of {int(t.units['of'].sum())} with a new {t.free[0]}" for t in mine]
        )
        test = f" (permuted within lines, p = {p:.2g})"
        verdict = "do not tell the streams apart" if p > ALARM else "differ between the streams"
        few = max(1, sum(len(set(streams[lines == line])) > 1 for line in set(lines)))
        if p > ALARM < factorial(len(mine)) ** (1.0 - few):  # no counts of so few lines have a smaller p-value
            verdict = "cannot tell the streams apart: too few seeds without a common stream had several redrawn"
            test = ""
        text = f"{condition and condition + ': '}{shown}: these counts {verdict}{test}."
        label = "one stream redrawn" + (f" ({condition})" if condition else "")
        findings.append(Finding(label, f"p = {p:.2g}" if test else "no test", text))
    return findings


def _test(kind: Kind, rate: float) -> Test:
    counts = [kind.hit.counts(unit.repeats) for unit in kind.candidates]
    bases = [kind.hit.counts(unit.others) if unit.others else None for unit in kind.candidates]
    result = replication(counts, bases, [unit.line for unit in kind.candidates], rate)
    records = [
        {
            "candidate": unit.name,
            **{f"seed_{stream}": str(seed) for stream, seed in unit.seeds.items()},
            "chosen by": f"run {unit.owns[0][:10]}" if unit.owns else "name",
            "again": hits,
            "of": runs,
            "share": c.again.value,
            "low": c.again.low,
            "high": c.again.high,
            "other seeds": "" if c.base is None else c.base.percent(),
            "p": None if c.p_more is None else float(f"{c.p_more:.2g}"),
            "verdict": c.verdict.value,
        }
        for unit, (hits, runs), c in zip(kind.candidates, counts, result.candidates, strict=True)
    ]
    units = pd.DataFrame(records).sort_values(["share", "of"], ascending=False, kind="stable").reset_index(drop=True)
    return Test(kind, result, units)


def what_repeats(kind: Kind) -> str:
    """Return which seeds a repeat keeps and what it changes, in words."""
    at = f" ({kind.condition})" if kind.condition else ""
    if len(kind.fixed) == len(RUN_STREAMS):
        return f"All seeds kept, {kind.change}{at}"
    return f"{listed(kind.fixed).capitalize()} seed{'s' * (len(kind.fixed) > 1)} kept, {kind.change}{at}"


def verdict(test: Test) -> str:
    """Return the conclusion from the repeats, as a clause."""
    result, hit, n = test.result, test.kind.hit.words, len(test.kind.candidates)
    # if all other seeds have the same order seed, they tell nothing of the order
    units = test.kind.candidates
    compared = test.kind.rows.loc[list({run for unit in units for run in unit.others})]
    common = [s for s in test.kind.shared if set(compared[f"seed_{s}"]) == {units[0].seeds[s]}]
    kept = [s for s in test.kind.fixed if s not in common]
    unknown = all(c.base is None for c in result.candidates)
    elsewhere = f" with {test.kind.name}, too" if "=" in test.kind.name else ""
    at = f" (with this {listed(common)} seed)" if common else ""
    streams = "the seed's streams" if not test.free else f"the {listed(kept)} seed{'s' * (len(kept) > 1)}{at}"
    enough = f"keeping {streams} is enough to be {hit}" if test.free else f"being {hit} is a property of {streams}"
    sure = result.count(Verdict.MOST)
    if result.verdict is Verdict.MOST:
        if unknown:
            whose = "their" if n > 1 else "its"
            return f"most of {whose} repeats are {hit}; without the rate of other seeds that may be so of any seed"
        if 2 * sure <= n:
            return f"together most of their repeats are {hit}, which is clear for {sure} of {n} candidates alone"
        which = f" (shown for {sure} of {n} candidates)" if sure < n else ""
        return f"{enough}{' in most repeats' if test.free else elsewhere}{which}"
    if all(c.base is not None and c.base.low > MOST for c in result.candidates):
        return f"most other seeds are {hit}, too, so repeats cannot tell"
    called = result.count(Verdict.MOST, Verdict.MORE)
    if not called and result.pooled.low > MOST:
        return f"each candidate has too few repeats to be judged alone, but together most of their repeats are {hit}"
    if result.verdict is Verdict.MORE:
        who = f"{called} of {n} candidates {'is' if called == 1 else 'are'}" if n > 1 else "the candidate is"
        who = who if called else "together the candidates are"
        causes = ["chance", *([f"the new {listed(test.free)} seed"] if test.free else [])]
        # only if all that were not moved are hits again may it be the processor that others lack
        stayed = {run for unit in units for run in unit.repeats}.difference(test.kind.moved)
        causes += ["the processor"] * bool(test.kind.hit.flags[[*stayed]].eq(1).all())
        # a repeat that is none shows that more than the kept seeds decides
        others = f": {listed(causes, 'or')} matters, too" * (result.pooled.value < 1)
        most = "but most repeats are not" if result.pooled.high < MOST else "but not proven to be in most repeats"
        most = f"{sure} of them in most repeats" if sure else most
        return f"{who} {hit} more often than other seeds, {most}{others}"
    if result.verdict is Verdict.NO_SIGN:
        return f"no sign that {enough}: most repeats are not"
    if unknown:
        return "without the rate of other seeds repeats cannot tell chance from a property of the seed"
    return "too few repeats to distinguish chance from a property of the seed"


def _findings(study: Repeats, test: Test) -> None:
    kind, result = test.kind, test.result
    hits, runs = int(test.units["again"].sum()), int(test.units["of"].sum())
    hit, n = kind.hit.words, len(kind.candidates)
    shown = f"{hits} of {runs}"
    text = (
        f"{what_repeats(kind)}: {how_many(n, 'candidate')}, {hit} again in {shown} repeats, "
        f"{result.pooled.percent(0)} for th{'ese candidates' if n > 1 else 'is candidate'}; {verdict(test)}."
    )
    with suppress(NotEnoughData):
        purpose = generator(f"candidates {test.name}")
        p = unequal_rates(test.units["again"].tolist(), test.units["of"].tolist(), purpose).p
        if p <= ALARM:
            text += f" The candidates differ (p = {p:.2g}), so this need not be the rate of any of them."
    if lost := int((kind.rows["status"][[run for u in kind.candidates for run in u.repeats]] == "diverged").sum()):
        text += f" {lost} of these repeats diverged, and have no accuracy."
    if apart := kind.otherwise:
        text += f" These repeats and their seeds' own runs were not all computed alike ({listed(apart)})."
    beside: list[Finding] = []
    if kind.hit.judged is not None:  # a threshold alone does not tell a near miss from an ordinary run
        again = kind.hit.judged["accuracy"][[run for unit in kind.candidates for run in unit.repeats]]
        if again.notna().any():
            text += f" The accuracy of these repeats is {again.median():.1%} in the median, {again.min():.1%} at least."
        beside = [*_held(test), *_by_device(test), *_by_margin(test)]
    judged = zip(result.candidates, kind.candidates, strict=True)
    bases = sorted({(c.base.percent(), unit.others_words) for c, unit in judged if c.base is not None})
    short = f"{hit[0].upper()}{hit[1:]} again, {test.name}: {shown}, {result.pooled.percent(0)} for the candidates."
    if bases:
        other = f"random seeds with another {listed(kind.shared)} seed" if kind.shared and test.free else "random seeds"
        said = "; ".join(f"{share} of {words.replace('random seeds', other)}" for share, words in bases)
        among = any(own in unit.others for unit in kind.candidates for own in unit.owns)
        text += f" Other seeds: {said}{', these candidates among them' * among}."
        short = f"{short[:-1]}; other seeds: {' or '.join(share for share, _ in bases[:2])}."
    else:
        text += (
            f" The rate of other seeds is not compared: that takes {FEWEST_OTHERS} random seeds of these settings, or "
            f"{FEWEST_CONTROLS} drawn by lot and repeated the same way."
        )
    short += "".join(f.short for f in beside)
    if result.mean is not None:
        m = result.mean
        same = f" with this {listed(kind.shared)} seed" if kind.shared else ""
        lines = f" ({m.n} lines: those that share a seed are one)" if m.n < n else ""
        text += f" For all seeds{same} chosen like these: {m.percent(0)} of a seed's repeats{lines}."
    elif n > 1:
        text += " The candidates share streams, so they do not tell how other such seeds behave."
    if any(len(unit.owns) > 1 for unit in kind.candidates):
        text += " Runs with the same kept seeds are one candidate."
    if kind.controls:
        counts = [kind.hit.counts(unit.repeats) for unit in kind.controls]
        again, of = (sum(column) for column in zip(*counts, strict=True))
        text += f" Ordinary controls: {again} of {of} repeats of {how_many(len(counts), 'seed')}, "
        text += f"{mean_share(counts, [unit.line for unit in kind.controls]).percent(0)} with the seed as the unit."
    label = f"{hit} again, {test.name}"
    study.findings += [Finding(label, shown, text, result.pooled, headline=True, short=short), *beside]
    name = test.name.replace(" kept", "").replace(" + ", "_").replace(" ", "_")
    table = test.units.assign(**{c: (100 * test.units[c]).round(1) for c in ("share", "low", "high")})
    table = table.rename(columns={"share": "share %", "low": "low %", "high": "high %"})
    caption = f"Candidates repeated: {what_repeats(kind).lower()}"
    study.tabulate(
        f"again_{name}", caption, table, open=n <= 20 and not any(t.name.startswith("again_") for t in study.tables)
    )


QUESTION = Question(
    "repeatability",
    "Is it the seed?",
    "Are the best seeds good again when they are repeated?",
    "grok repeat --best 12",
    analyse,
    lambda observations: len(observations.once(repeats)) > 0,
    reads_designs=True,
    any_task=False,
)
