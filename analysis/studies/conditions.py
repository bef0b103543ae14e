"""One setting at a time: weight decay, and every other intervention, each value against its reference.

A family is all runs that differ in one setting only, except seeds. Each value of the setting is
compared with the reference: the default if it was run, otherwise the value with most runs in all families.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats

from grok.analysis.criteria import DIARY, UNJUDGED, known_until, restricted
from grok.analysis.observations import (
    CONDITION_SETTINGS,
    OWN_CODE,
    Observations,
    default_settings,
    describe_task,
    differing_settings,
    in_words,
    listed,
    varying_columns,
)
from grok.analysis.populations import settings_in_words
from grok.analysis.purposes import SEEDS, after_results, asked, extended, matched, shared_seeds, triples
from grok.analysis.statistics.estimate import LEVEL, Estimate, Labels, NotEnoughData, holm, student
from grok.analysis.statistics.proportions import clustered_ratio, ratio
from grok.analysis.statistics.survival import Times, quantile, watched_until
from grok.analysis.studies.base import Finding, Question, Study, otherwise
from grok.analysis.studies.census import judged

MOST = 6
"""Largest number of families of one setting; the largest are kept."""
FEWEST = 5
"""Smallest number of runs of a value."""
WEIGHT_DECAY = "optim.weight_decay"


@dataclass(frozen=True)
class Family:
    """Runs that differ only in ``setting``."""

    setting: str
    groups: dict[str, pd.DataFrame]
    """The runs by the value as text, the reference first."""
    at: str = ""
    """Values of the other settings that vary in the store, if the setting has several families."""
    apart: tuple[str, ...] = ()
    """Values left out: their runs hold other seeds fixed than the reference's, which may make the difference."""

    @property
    def title(self) -> str:
        """The setting, followed by ``at`` if there is one."""
        return f"{self.setting} at {self.at}" if self.at else self.setting

    @property
    def reference(self) -> str:
        """The value that the others are compared with."""
        return next(iter(self.groups))


def families(observations: Observations, settings: tuple[str, ...]) -> list[Family]:
    """Return the families of each of ``settings`` with at least two values, the largest first.

    If another setting varies as well, each of its values makes a separate family. Only runs that were asked for before
    any result count: repeats of seeds that were chosen under one value would bias the comparison towards it. They are
    as long as a design went on with every one of the family's runs of their value.
    """
    rows = observations.once(asked)
    rows = rows[rows["layers"] == "{}"]
    columns = varying_columns(rows) if len(rows) else []
    result = []
    for setting in settings:
        column = f"config.{setting}"
        if column not in columns:
            continue
        others = [c for c in columns if c != column]
        # in the order of the values (numbers as numbers), null last
        values = dict.fromkeys(map(in_words, rows[column].sort_values(na_position="last")))
        alike = [base for _, base in rows.groupby(others, dropna=False, sort=True)] if others else [rows]
        alike = [base for base in alike if len(base) >= 2 * FEWEST]  # of a search, hundreds have one run
        found = [groups for base in alike if len(groups := _by_value(base, column, list(values))) > 1]
        found = sorted(found, key=lambda groups: -sum(map(len, groups.values())))[:MOST]
        firsts = [next(iter(groups.values())).iloc[0] for groups in found]
        differing = [c for c in others if len({in_words(first[c]) for first in firsts}) > 1]
        default = in_words(default_settings()[setting])
        everywhere = {v: sum(len(groups.get(v, ())) for groups in found) for v in values}
        for groups, first in zip(found, firsts, strict=True):
            at = ", ".join(f"{c.removeprefix('config.')}={in_words(first[c])}" for c in differing)
            for reference in sorted(groups, key=lambda v: (v != default, -everywhere[v])):
                matched = _matched({reference: groups[reference], **groups})
                if len(matched) > 1:
                    apart = tuple(v for v in groups if v not in matched)
                    longer = {value: extended(observations, runs) for value, runs in matched.items()}
                    result.append(Family(setting, longer, at, apart))
                    break
    return result


def _by_value(rows: pd.DataFrame, column: str, values: list[str]) -> dict[str, pd.DataFrame]:
    """Return the rows of each of ``values`` that has enough of them."""
    text = rows[column].map(in_words, na_action=None)
    present = set(text)
    groups = {value: rows[text == value] for value in values if value in present}
    return {value: runs for value, runs in groups.items() if len(runs) >= FEWEST}


def _matched(groups: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the groups with only the seeds that the reference has, too, if enough of them remain.

    A group of other seeds is left out if it holds other streams fixed than the reference. The reference keeps all its
    seeds where a list of some of them was made after their results, which may have chosen them.
    """
    (reference, base), *others = groups.items()
    theirs = set(triples(base))
    kept = {value: rows[[t in theirs for t in triples(rows)]] for value, rows in others}
    others = [
        (value, kept[value] if len(kept[value]) >= FEWEST else rows)
        for value, rows in others
        if len(kept[value]) >= FEWEST or held_fixed(rows) == held_fixed(base)
    ]
    shared = set().union(*(set(triples(rows)) for _, rows in others))
    mine = base[[t in shared for t in triples(base)]]
    narrowed = len(mine) >= FEWEST and not any(after_results(base, rows) for _, rows in others)
    return {reference: mine if narrowed else base, **dict(others)}


def held_fixed(rows: pd.DataFrame) -> dict[str, int]:
    """Return the streams (columns) that all runs hold at one seed."""
    return {stream: int(rows[stream].iloc[0]) for stream in SEEDS if rows[stream].nunique() == 1}


OTHERS = tuple(s for s in CONDITION_SETTINGS if s not in (WEIGHT_DECAY, "eval.couple_order", OWN_CODE))


def decay_families(observations: Observations) -> list[Family]:
    """Return the family of weight decays."""
    return families(observations, (WEIGHT_DECAY,))


def other_families(observations: Observations) -> list[Family]:
    """Return the families of all other settings."""
    return families(observations, OTHERS)


# One value of a setting against its reference: the ratio of the times to generalise.
#
# If enough seeds were run with both values, only these are compared. Times count up to the largest
# step to which all of them are known.

FEW_LATE = 0.05
"""Largest share of runs that count with the horizon in a ratio; with more, the ratio is only a bound. With more of
them, in simulations a true ratio of 8 was estimated as 6.7, and its interval covered the truth in 71% of the cases."""
CROSSING = "crossing"
CHOSEN = "chosen"
FLAT = 1e-9
"""Range of log times below which all are equal except for rounding."""


@dataclass(frozen=True)
class Contrast:
    """One value of a setting against the reference."""

    family: Family
    value: str
    rows: pd.DataFrame
    base: pd.DataFrame
    """The runs of the reference; if ``paired``, of the same seeds, row by row."""
    paired: bool
    horizon: float
    """Step up to which times count: the largest one up to which every run's time is known."""
    slowdown: Estimate | None
    """Time to generalise divided by that of the reference (geometric means of restricted times)."""
    bound: str
    """``at least`` or ``at most`` if more runs of the slower side had not generalised by the horizon: they count with
    it, which biases the ratio towards 1. ``crossing`` if more than a few of the faster side had not: no bound. ``no``
    if most runs of both sides had not; empty if (nearly) all had. ``chosen`` if the seeds were
    listed after their results with the reference: then it tells nothing about the setting."""
    p: float | None
    """Two-sided p-value of: the slowdown is 1. None without a slowdown."""
    shared: tuple[str, ...] = ()
    """Streams of which several runs share a seed: intervals are by the spread between these seeds."""

    @property
    def about(self) -> str:
        """What the ratio is of besides: seeds in common, runs that diverged, and other processors, in words."""
        both = (self.rows, self.base)
        held = [stream.removeprefix("seed_") for stream in held_fixed(pd.concat(both))]
        here, there = (int((side["status"] == "diverged").sum()) for side in both)
        text = f", at one {listed(held)} seed" if held else ""
        if here + there:
            text += f"; runs that diverged count as late ones ({here} here and {there} at {self.family.reference})"
        return text + self.computed

    @property
    def computed(self) -> str:
        """That it was computed otherwise than the reference, in words after a semicolon; empty if alike."""
        words = otherwise(self.rows, self.base, f"at {self.family.reference}")
        return f"; {words}" * bool(words)

    @property
    def label(self) -> str:
        """``setting=value``, followed in parentheses by values of other settings, if it has several families."""
        return f"{self.family.setting}={self.value}{f' ({self.family.at})' if self.family.at else ''}"


def contrast(observations: Observations, family: Family, value: str) -> Contrast:
    """Return the comparison of one value with the family's reference."""
    rows, base = family.groups[value], family.groups[family.reference]
    pairs = matched(rows, base)
    by_results = after_results(base, rows) or after_results(rows, base)
    paired = len(pairs[0]) >= FEWEST and not by_results
    if paired:
        rows, base = pairs
    horizon = known_until(observations, pd.concat([rows, base]))
    log, log0 = (restricted(observations.times(side), horizon) for side in (rows, base))
    bound = CHOSEN if by_results else bound_of(log, log0, float(np.log(horizon)))
    shared = shared_seeds(rows) if paired else shared_seeds(rows, base)
    found = ratio_of_means(log, log0, paired, [*shared.values()]) if bound not in ("no", CHOSEN) else (None, None)
    slowdown, p = found
    if slowdown is not None and bound != CROSSING and bound:
        slowdown = replace(slowdown, high=np.inf) if bound == "at least" else replace(slowdown, low=0.0)
    return Contrast(family, value, rows, base, paired, horizon, slowdown, bound, p, tuple(shared))


def bound_of(log: np.ndarray, log0: np.ndarray, end: float) -> str:
    """Return :attr:`Contrast.bound` for the log times ``log`` and ``log0`` with the log of the horizon ``end``."""
    late, late0 = (float((x >= end).mean()) for x in (log, log0))
    if min(late, late0) > 0.5:
        return "no"
    if max(late, late0) <= FEW_LATE:
        return ""
    slower = bool(log.mean() > log0.mean())
    if late == late0 or slower != (late > late0) or min(late, late0) > FEW_LATE:
        return CROSSING
    return "at least" if slower else "at most"


def ratio_of_means(log: np.ndarray, log0: np.ndarray, paired: bool, shared: Labels = ()) -> tuple[Estimate, float]:
    """Return the ratio of geometric means and its p-value, by Student's t on the log scale (Welch's if not paired).

    ``shared``: as in `student`.
    """
    method = "paired t, log scale" if paired else "Welch's t, log scale"
    n = len(log) if paired else len(log) + len(log0)
    mean, se, dof = student(log - log0, shared=shared) if paired else student(log, log0, shared)
    spread = np.ptp(log - log0) if paired else max(np.ptp(log), np.ptp(log0))
    if spread < FLAT:
        # Without spread the t test is undefined; the sign test remains.
        p = 1.0 if abs(mean) < FLAT else 2 * 0.5 ** min(len(log), len(log0), dof + 1)
        return Estimate(float(np.exp(mean)), float(np.exp(mean)), float(np.exp(mean)), n, method), p
    half = float(stats.t.ppf(0.5 + LEVEL / 2, dof)) * se
    p = 2 * float(stats.t.sf(abs(mean) / se, dof))
    return Estimate(float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half)), n, method), p


@dataclass(kw_only=True)
class Comparison(Study):
    """Families, their curves and each value's contrast."""

    families: list[tuple[Family, dict[str, Times]]]
    """Each family with the times by value."""
    contrasts: list[Contrast]
    p: dict[str, float]
    """Holm-adjusted p-value by the contrast's label."""


def analyse_settings(observations: Observations, families: list[Family]) -> Comparison:
    """Return the answer for every family.

    Raises:
        NotEnoughData: there is no family.
    """
    if not families:
        raise NotEnoughData(f"at least {FEWEST} seeds at each of two values of one setting, everything else equal")
    contrasts = [contrast(observations, f, v) for f in families for v in list(f.groups)[1:]]
    tested = [c for c in contrasts if c.p is not None]
    adjusted = holm([c.p for c in tested if c.p is not None])
    study = Comparison(
        families=[(f, {v: observations.times(rows) for v, rows in f.groups.items()}) for f in families],
        contrasts=contrasts,
        counted=[run for f in families for rows in f.groups.values() for run in rows.index],
        p={c.label: float(p) for c, p in zip(tested, adjusted, strict=True)},
    )
    records = []
    for family in families:
        mine = [c for c in contrasts if c.family is family]
        study.findings.append(_sentence(study, family, mine))
        records.append(_record(observations, study, family, None))
        records += [_record(observations, study, family, c) for c in mine]
    if len(tested) > 1 or (len(families) > 1 and tested):  # one of several ratios alone would be a choice
        study.findings.insert(0, _count(study))
    study.findings += [f for c in contrasts for f in _rates(observations, c, len(families) == 1)]
    caption = "Each value against its reference" + "; p (Holm): that geometric means are equal, over all" * bool(tested)
    table = pd.DataFrame(records)
    table = table[[c for c in table if (table[c].astype(str) != "").any()]]
    study.tabulate("values", caption, table)
    study.notes += _notes(families, contrasts)
    return study


def _count(study: Comparison) -> Finding:
    """Return the number of values that change the time beyond chance, with the slowest and the fastest."""
    timed = [(c, c.slowdown) for c in study.contrasts if c.slowdown is not None]
    clear = [(c, e) for c, e in timed if study.p[c.label] < 0.05]
    shown = f"{len(clear)} of {len(timed)}"
    text = (
        f"{shown} values change the mean time to generalise beyond chance (Holm-adjusted p below 0.05 over all of them)"
    )
    # times of several references are not told by the ratios to them
    one = len({str(differing_settings(f.groups[f.reference].iloc[0])) for f, _ in study.families}) == 1
    for word, sign in (("slowest" if one else "largest ratio", 1), ("fastest" if one else "smallest ratio", -1)):
        far = [(sign * np.log(e.value), c) for c, e in clear if sign * np.log(e.value) > 0]
        if far:
            _, c = max(far, key=lambda pair: pair[0])
            beside = f"{c.family.reference} at {c.family.at}" if c.family.at else c.family.reference
            text += f"; {word} at {c.family.setting}={c.value} over {beside}, {slowdown_words(c)}{c.about}"
    text += "; an extreme of several ratios is likely too far from 1" * (len(timed) > 1 and bool(clear))
    what = listed(sorted({family.setting for family, _ in study.families}))
    short = f"Of {what} {shown} values change the mean time to generalise beyond chance"
    if clear:
        c = min((c for c, _ in clear), key=lambda c: study.p[c.label])
        short += f"; clearest at {c.label} over {c.family.reference}, {slowdown_words(c)}{c.about}"
    return Finding("values change the time beyond chance", shown, text + ".", headline=True, short=short + ".")


def _sentence(study: Comparison, family: Family, contrasts: list[Contrast]) -> Finding:
    values = "; ".join(f"{c.value}: {slowdown_words(c)}{c.about}{_verdict(study, c)}" for c in contrasts)
    text = f"{family.title}, time to generalise relative to {family.reference}: {values}."
    values = listed([family.reference, *(c.value for c in contrasts)])
    none = f"At {family.setting}={values} most runs have not generalised by step "
    none += f"{min(c.horizon for c in contrasts):,.0f}."
    short = none * all(c.bound == "no" for c in contrasts)
    return Finding(family.title, f"{len(contrasts) + 1} values", text, short=short)


def _verdict(study: Comparison, c: Contrast) -> str:
    if c.slowdown is None or study.p[c.label] < 0.05:
        return ""
    if c.slowdown.low > 1 or c.slowdown.high < 1:
        return ", which may be chance among so many comparisons"
    return ", no difference of the mean beyond chance"


def slowdown_words(c: Contrast) -> str:
    """Return the ratio of times with its interval, or that neither side generalises."""
    if c.bound == CHOSEN:
        return "not told: seeds listed after their results"
    if c.slowdown is None:
        return f"neither generalises by step {c.horizon:,.0f} in most runs"
    if c.bound == CROSSING:
        return f"{_times(c.slowdown)} with times cut at step {c.horizon:,.0f} (no bound: the curves may cross)"
    return f"{c.bound} {_times(c.slowdown)}".strip()


def _times(e: Estimate) -> str:
    if not np.isfinite(e.high):
        return f"×{e.value:.2f} ({e.low:.2f} and above)"
    return f"×{e.value:.2f} ({f'{e.low:.2f} to ' if e.low else 'up to '}{e.high:.2f})"


def _record(observations: Observations, study: Comparison, family: Family, c: Contrast | None) -> dict[str, object]:
    rows = family.groups[family.reference] if c is None else c.rows
    times = observations.times(rows)
    slowdown = c.slowdown if c else None
    # longer runs of one value would otherwise count as an advantage
    every = pd.concat(family.groups.values())
    known, done_at = known_until(observations, every), observations.times(every)
    done = f"{int((times.right <= known).sum())} of {len(times)}"
    if (done_at.seen & (done_at.right > known)).any():
        more = int((times.seen & (times.right > known)).sum())
        done += f" by step {known:,.0f}" + (f", {more} later" if more else "")
    return {
        "setting": family.title if c is None else "",
        "value": f"{family.reference} (reference)" if c is None else c.value,
        "generalised": done,
        "same seeds": "" if c is None else "yes" if c.paired else "no",
        "median step": _median(times),
        "time over the reference's": slowdown_words(c) if c and (slowdown or c.bound == CHOSEN) else "",
        "up to step": f"{c.horizon:,.0f}" if c and slowdown else "",
        "p (Holm)": f"{study.p[c.label]:.2g}" if c and c.label in study.p else "",
    }


def _median(times: Times) -> str:
    try:
        return quantile(times).plain()
    except NotEnoughData:
        last = min(float(np.max(times.left)), watched_until(times)) if len(times) else 0.0
        return f"not within {last:,.0f}"


def _rates(observations: Observations, c: Contrast, headline: bool) -> list[Finding]:
    """Return findings about the ratio of super seeds, with both values judged at one horizon."""
    findings, base = [], c.family.reference
    if headline and c.slowdown is not None:
        doubt = "" if c.slowdown.low > 1 or c.slowdown.high < 1 else "; no clear difference of the mean"
        upto = f" by step {c.horizon:,.0f}" * (c.bound != CROSSING)
        text = f"Time at {c.label} over that at {base}{upto}: {slowdown_words(c)}{c.about}{doubt}."
        setting, at = c.family.setting.rpartition(".")[2].replace("_", " "), f" ({c.family.at})" if c.family.at else ""
        what = f"time at {setting} {c.value}, over that at {base}{at}"
        findings.append(Finding(what, slowdown_words(c), text, c.slowdown, headline=True, listed=False))
    labelled, horizon = judged(observations, pd.concat([c.rows, c.base]))
    known = labelled[labelled["label"] != UNJUDGED]
    hit = known["label"] == "super"
    mine = known.index.isin(c.rows.index)
    a, n, b, m = int(hit[mine].sum()), int(mine.sum()), int(hit[~mine].sum()), int((~mine).sum())
    if c.bound == CHOSEN or not n or not m or not a + b:
        return findings
    e = ratio(a, n, b, m)
    if c.shared:
        try:
            e = clustered_ratio(hit.to_numpy(), mine, [known[f"seed_{stream}"].to_numpy() for stream in c.shared])
        except NotEnoughData:
            return findings
    counts = f"{a} of {n} at {c.value}, {b} of {m} at {base}{' (seeds of both)' * c.paired}, judged at step {horizon:,}"
    e = replace(e, n=len(c.rows)) if c.paired else e
    others = set(differing_settings(c.base.iloc[0])) - {c.family.setting}
    seeds = f"seeds above {DIARY.super_accuracy:.0%}" if others else "super seeds"  # the thresholds are the diary's
    shown = f"×{e.plain(2)}" if b else f"at least ×{e.low:.2g}"
    # the table has the times of every value; only rates that differ beyond chance get a sentence
    clear, what = e.low > 1 or e.high < 1, seeds[0].upper() + seeds[1:]
    text = f"{what} at {c.label}, over those at {base}: {shown}; {counts}{'' if clear else ', not told apart'}"
    text += f"{c.computed}."
    label = f"{seeds} at {c.label}, over those at {base}"
    return [*findings, Finding(label, shown, text, e, headline=headline and clear, listed=clear)]


def _notes(families: list[Family], contrasts: list[Contrast]) -> list[str]:
    notes = [
        "Times are geometric means up to the step in the table; runs that take longer count with that step. If more "
        "than 5% of one side do, the ratio is a bound (“at least” or “at most”) with one end; if of both, it is none."
    ]
    notes += [
        f"{family.title}: {', '.join(family.apart)} left out, because the runs hold other seeds fixed than those at "
        f"{family.reference}, and a fixed seed may make the difference."
        for family in families
        if family.apart
    ]
    notes += [
        f"{c.label}: runs share {listed(c.shared)} seeds, so the interval of the ratio is by the spread between these "
        "seeds; that of a median takes runs for independent."
        for c in contrasts
        if c.shared
    ]
    held: dict[str, list[str]] = {}
    for family in families:
        row = family.groups[family.reference].iloc[0]
        settings = f"{describe_task(row)}; {settings_in_words(row, (family.setting,))}"
        held.setdefault(settings, []).append(family.title)
    whose = [f" of {'; '.join(titles)}" * (len(held) > 1) for titles in held.values()]
    return [*notes, *(f"Task{of}: {settings}." for of, settings in zip(whose, held, strict=True))]


WEIGHT_DECAY_QUESTION = Question(
    "weight_decay",
    "Weight decay",
    "How much weight decay does a seed need?",
    "grok sweep sweep=weight_decay",
    lambda observations: analyse_settings(observations, observations.once(decay_families)),
    lambda observations: bool(observations.once(decay_families)),
)
INTERVENTIONS_QUESTION = Question(
    "interventions",
    "Interventions",
    "What happens when one setting is changed and the seeds are not?",
    "grok sweep sweep=train_fraction",
    lambda observations: analyse_settings(observations, observations.once(other_families)),
    lambda observations: bool(observations.once(other_families)),
)
