"""Variance shares of the streams in crossed factorial designs with replicates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grok.analysis.criteria import DIARY, FEW_CUT_OFF, Outcome, accuracy_at, final_loss, outcome
from grok.analysis.observations import (
    CONDITION_SETTINGS,
    Condition,
    Observations,
    conditions_of,
    describe_task,
    has_diary_task,
    how_many,
    listed,
)
from grok.analysis.populations import settings_in_words
from grok.analysis.purposes import roles
from grok.analysis.statistics.estimate import Estimate, NotEnoughData, benjamini_hochberg, generator, holm
from grok.analysis.statistics.proportions import Heterogeneity, confirmed_ratio, heterogeneity
from grok.analysis.statistics.repeatability import normal_scores
from grok.analysis.statistics.variance_shares import (
    CHAOS,
    VarianceShares,
    bounded,
    carried,
    densest,
    filled,
    seeds_needed,
    variance_shares,
)
from grok.analysis.studies import gpt
from grok.analysis.studies.base import Beside, Finding, Question, Study, by_condition
from grok.analysis.studies.census import FEW_NAMED
from grok.streams import CROSSED

# The crossed designs of a store: cells that cross the seeds of streams, in the arithmetic mode and language models.

FEWEST = 8
"""Smallest number of runs of a design."""


@dataclass(frozen=True)
class Subject:
    """What is crossed: the runs of one mode, their streams, and their outcome."""

    streams: tuple[str, str, str]
    rows: Callable[[Observations], pd.DataFrame]
    """One row per trajectory."""
    conditions: Callable[[pd.DataFrame], list[Condition]]
    settings: Sequence[str]
    """Settings that define a condition."""
    outcome: Callable[[Observations, pd.DataFrame], Outcome]
    describe: Callable[[pd.Series], str]
    """Task or model of a run in words, with its settings."""


@dataclass(frozen=True)
class Design:
    """The runs of one crossed design, and its factors."""

    rows: pd.DataFrame
    factors: dict[str, tuple[str, ...]]
    """Streams of each factor by its name: ``"init"``, or ``"split + init"`` if they vary together."""

    def levels(self, factor: str) -> np.ndarray:
        """Return each run's level of a factor, an integer."""
        return self.rows.groupby([f"seed_{s}" for s in self.factors[factor]], sort=True).ngroup().to_numpy()

    @property
    def codes(self) -> np.ndarray:
        """The levels of all factors (runs, factors)."""
        return np.stack([self.levels(f) for f in self.factors], 1)


def crossed_design(rows: pd.DataFrame, factoring: tuple[tuple[str, ...], ...]) -> Design:
    """Return the densest crossed design of these factors among ``rows`` of one condition; it may have no run."""
    levels = [rows.groupby([f"seed_{s}" for s in streams], sort=True).ngroup().to_numpy() for streams in factoring]
    dense = rows[densest(np.stack(levels, 1))]
    # If one stream of a factor does not vary, the factor is the other stream.
    factors = {}
    for streams in factoring:
        moving = tuple(s for s in streams if dense[f"seed_{s}"].nunique() > 1)
        factors[" + ".join(moving)] = moving
    return Design(dense, factors)


def largest_design(rows: pd.DataFrame, subject: Subject) -> Design:
    """Return the crossed design of all three streams among the runs of one condition, or the largest of two factors.

    It may have no run.
    """
    a, b, c = subject.streams
    whole, two = crossed_design(rows, ((a,), (b,), (c,))), [((a, b), (c,)), ((a, c), (b,)), ((b, c), (a,))]
    return whole if len(whole.rows) else max((crossed_design(rows, of) for of in two), key=lambda d: len(d.rows))


def _cells(observations: Observations, mode: str) -> pd.DataFrame:
    cells = observations.once(roles).of("cell", kinds=("crossed",))
    return observations.measured(cells["run_id"].tolist(), mode)


def _language_rows(observations: Observations) -> pd.DataFrame:
    """Return the cells that are language models; a stream that cannot change a run has the seed 0."""
    rows = _cells(observations, "gpt")
    if rows.empty:
        return rows
    return rows.assign(
        seed_dropout=rows["seed_dropout"].where((rows[gpt.DROPOUT].fillna(0.0) > 0).any(axis=1), 0),
        seed_init=rows["seed_init"].where(rows["config.init_from"].isna(), 0),
    )


EQUATIONS: Final = Subject(
    CROSSED["arithmetic"],
    lambda observations: _cells(observations, "arithmetic"),
    conditions_of,
    CONDITION_SETTINGS,
    outcome,
    lambda row: f"{describe_task(row)}; {settings_in_words(row)}",
)
LANGUAGE: Final = Subject(
    CROSSED["gpt"],
    _language_rows,
    gpt.conditions_of,
    gpt.CONDITION_SETTINGS,
    final_loss,
    gpt.describe_language_model,
)


# Variance shares of the streams in a crossed factorial design with replicates.

MODEL_SEED: Final = {"split and init together": ("split", "init", "split × init")}
"""The sum of components that one seed for split and weights decides, as the diary's model seed."""
UNKNOWN: Final = 0.8
"""Width of an interval of a share that says nothing."""
FAR: Final = 100.0
"""How many times the lower end of a ratio's interval the upper end is where the ratio says nothing."""
NO_WIDTH: Final = 1e-4
"""Width below which the estimate lies beyond all simulated ones."""


@dataclass(kw_only=True)
class Crossed(Study):
    """Variance shares and conditional rates of one crossed design."""

    rows: pd.DataFrame
    """The runs of the design, with the column ``y`` (the outcome; that of runs at the end of its scale is bounded)."""
    outcome: Outcome
    subject: Subject
    factors: dict[str, np.ndarray]
    """Each run's level (runs,) by the factor's name."""
    streams: dict[str, str]
    """The stream whose seed names the levels, by the factor's name."""
    shares: VarianceShares | None = None
    rates: pd.DataFrame | None = None

    @property
    def single(self) -> bool:
        """Whether every cell has one run: then the interaction of all seeds and chaos are one component."""
        return len(np.unique(np.stack(list(self.factors.values()), 1), axis=0)) == len(self.rows)


def one(observations: Observations, condition: Condition, subject: Subject) -> Crossed:
    """Return the answer for the crossed design of one condition.

    Raises:
        NotEnoughData: it is too small, or no outcome differs between its runs.
    """
    crossing = largest_design(condition.rows, subject)
    rows = crossing.rows
    if len(rows) < FEWEST:
        raise NotEnoughData("seeds of at least two streams crossed, with two perturbed replicates of each cell")
    result = subject.outcome(observations, rows)
    saturated = np.zeros(len(rows), dtype=np.bool_) if result.saturated is None else result.saturated
    study = Crossed(
        rows=rows.assign(y=bounded(result.values, saturated) if saturated.any() else result.values),
        outcome=result,
        subject=subject,
        factors={name: crossing.levels(name) for name in crossing.factors},
        streams={name: streams[-1] for name, streams in crossing.factors.items()},
    )
    sizes = " × ".join(f"{len(np.unique(levels))} {name}" for name, levels in study.factors.items())
    cells, possible = filled(crossing.codes)
    how_full = "every cell filled" if cells == possible else f"{cells:,} of {possible:,} cells filled"
    study.scope = (
        f"{len(rows):,} runs of {subject.describe(rows.iloc[0])}: {sizes} seeds, "
        f"{how_full}, {len(rows) / cells:.2g} run{'s' * (len(rows) > cells)} a cell. Outcome: {result.name}."
    )
    study.left = _left(observations, condition.rows, rows, subject.streams)
    for streams in crossing.factors.values():
        if len(streams) > 1:
            study.notes.append(
                f"The {' and '.join(streams)} seeds vary together in these runs, so their shares cannot be separated."
            )
    if result.censored:
        end = (
            "had not generalised by then and count with that step"
            if result.is_time
            else "are at chance level, or have no wrong answer"
        )
        note = f"{result.censored:.0%} of the runs {end}."
        if diverged := int((rows["status"] == "diverged").sum()):
            note += f" {diverged} of all {len(rows):,} diverged: they count as late, and one such cell can decide."
        if result.censored > FEW_CUT_OFF:
            note += " With so many there, additive effects can look like interactions (up to 10%)."
        study.notes.append(note)
    _shares(study)
    _rates(observations, study)
    return study


def _left(observations: Observations, every: pd.DataFrame, kept: pd.DataFrame, streams: Sequence[str]) -> list[str]:
    """Return which seeds of planned cells no run in ``kept`` has, and how many runs of ``every`` they cost."""
    purposes = observations.once(roles)
    planned = set(every.index).union(*(of.missing for of in purposes.missing_with(every.index)))
    cells = purposes.rows[purposes.rows["run_id"].isin(planned) & (purposes.rows["kind"] == "crossed")]["unit"]
    names = []
    for stream in streams:
        seeds = {unit.get(stream) for unit in cells} - {None, *kept[f"seed_{stream}"]}
        if gone := sorted(seeds) if every[f"seed_{stream}"].nunique() > 1 else []:
            some = listed([*map(str, gone)]) if len(gone) <= FEW_NAMED else f"{len(gone)} of them"
            names.append(f"{stream} seed{'s' * (len(gone) > 1)} {some}")
    lost = how_many(len(every) - len(kept), "stored run")
    return [f"Left out, because too few runs have them: {listed(names)} ({lost})."] if names else []


def _shares(study: Crossed) -> None:
    y = study.rows["y"].to_numpy(dtype=float)
    merged = len(study.factors) > 1 and study.single
    cells, possible = filled(np.stack(list(study.factors.values()), 1))
    # few pairs tell of a combination: one far run would decide
    ranked = (merged or cells < possible) and not study.outcome.is_loss
    try:
        scores = normal_scores(y, y) if ranked else y
        study.shares = shares = variance_shares(
            scores, study.factors, generator("variance shares"), sums=MODEL_SEED, merged=merged
        )
    except NotEnoughData as gap:
        study.notes.append(f"Variance shares: not enough data, needs {gap.needs}.")
        return
    study.notes.append(
        "The intervals of shares suppose independent normal effects. If seeds take turns to be good and bad (the "
        "sign of one seed's effect depends on another's), they hold less often, and single seeds can seem to decide. "
        "Few seeds may hold none of a rare kind that is far from all others: no interval knows of it."
    )
    alone = {name: f"the {name} seed{'s together' if '+' in name else ' alone'}" for name in study.factors}
    by = f"{'up to' if study.outcome.is_time else 'at'} step {study.outcome.horizon:,.0f}"
    lead = max(shares.shares, key=lambda name: shares.shares[name].value)
    until = f", {by}" * (lead != CHAOS)  # the first sentence names the outcome
    words = alone | {CHAOS: f"chaos{until} (equal seeds, weights moved by units in the last place)"}
    if merged:  # the last component
        every = "all three" if len(study.factors) > 2 else "both"
        words[[*shares.shares][-1]] = f"{every} seeds together or to chaos, which one run a cell does not tell apart"
    last = int(study.rows["config.train.steps"].max())
    early = study.outcome.is_loss and study.outcome.horizon < last
    of = f"{'rank ' * ranked}variance"
    whole = f"{of} of the {study.outcome.name}"  # in the sentences that stand alone
    cannot_tell = ": these data cannot tell", ", and these data cannot tell how much"
    n, chosen = len(shares.shares), shares.largest
    leads = [*words, lead]
    low, high = (f"{100 * end:.0f}" for end in (chosen.low, chosen.high))
    largest = f"; it is the largest of {n} shares ({low} to {high}% allows for this choice)" * (n > 2 and low != high)
    for i, (name, e) in enumerate(sorted(shares.shares.items(), key=lambda pair: -pair[1].value)):
        shown = _shown(e)
        study.tell(
            f"{name} share",
            shown,
            f"{shown} of the {of if i else whole} belongs to {words.get(name, f'the interaction {name}')}"
            f"{cannot_tell[e.low > 0] if e.high - e.low > UNKNOWN else ''}"
            f"{': beyond what normal effects give, so without an interval' if e.high - e.low < NO_WIDTH else ''}"
            f"{'' if i else largest}.",
            e,
            headline=name in leads,
            listed=name in leads,
        )
    if shares.together is not None:
        e = shares.together
        name, most = max(
            ((n, s) for n, s in shares.shares.items() if "×" in n and CHAOS not in n), key=lambda pair: pair[1].value
        )
        e = replace(e, low=max(e.low, most.low))  # it has at least what a part has
        text = f"{e.percent()} of the {whole if e.low > 0.5 else of} belongs to combinations of {'two ' * merged}seeds"
        text += ", that is to no seed by itself"
        text += f"; the largest part to {name}, {most.value:.0%}." if len(shares.levels) > 2 else "."
        study.tell("combinations of seeds", e.percent(), text, e, headline=True)
        if e.low > 0.5:  # the answer, before shares that are nearly nothing
            study.findings.insert(0, study.findings.pop())
    for name, e in shares.sums.items():
        text = f"{e.percent()} of the {of} belongs to {name} (the diary's model seed moved both)."
        study.tell(f"{name} share", e.percent(), text, e)
    if ranked:
        own = variance_shares(y, study.factors, generator("variance of values"), merged=merged).shares
        text = f"By the {study.outcome.name}, not its ranks: {_values(own)}"
        shown = f"{[*own.values()][-1].value:.0%}"
        study.tell("shares by value", shown, f"{text}, without intervals: a few runs far from all others can decide.")
    elif study.outcome.saturated is not None and study.outcome.saturated.any():
        study.findings.append(_without_saturated(study, study.outcome.saturated))
    records = [
        {
            "component": name,
            "share %": round(100 * e.value, 1),
            "low %": round(100 * e.low, 1),
            "high %": round(100 * e.high, 1),
            "variance": shares.components[name],
        }
        for name, e in shares.shares.items()
    ]
    if study.outcome.is_loss:
        study.findings += _noise_floor(study, shares.total)
        if early:
            study.notes.append(
                f"Not all runs have a finite loss after step {study.outcome.horizon:,.0f}: nothing here is about "
                f"the loss at step {last:,}."
            )
    method = next(iter(shares.shares.values())).method
    study.tabulate("variance", f"Shares of the {whole}, and components ({method})", records)


def _values(shares: Mapping[str, Estimate]) -> str:
    """Return shares without their intervals."""
    return ", ".join(f"{name} {e.value:.0%}" for name, e in shares.items())


def _shown(e: Estimate) -> str:
    """Return a share with its interval, if it has one."""
    return e.percent() if e.high - e.low >= NO_WIDTH else f"{e.value:.1%}"


WISHED: Final = (0.01, 0.02, 0.05, 0.1)
"""Differences of the final loss, in nats, for which the number of seeds is told."""


def _noise_floor(study: Crossed, variance: Estimate) -> list[Finding]:
    """Return the spread of the loss over seeds, and the number of seeds that a difference needs; add its table."""
    low, value, high = (math.sqrt(v) for v in (variance.low, variance.value, variance.high))
    sd = replace(variance, value=value, low=low, high=high)
    records = [
        {"difference": d, "seeds": seeds_needed(value, d), "low": seeds_needed(low, d), "high": seeds_needed(high, d)}
        for d in WISHED
    ]
    caption = "Seeds of each of two settings that show a difference of their mean loss (nats) in 80% of studies"
    study.tabulate("seeds_needed", f"{caption}, by a two-sided t test at 5%", records)
    return [
        Finding(
            "noise floor",
            f"{sd.plain(4)} nats",
            f"The standard deviation of the loss at step {study.outcome.horizon:,.0f} over random seeds is "
            f"{sd.plain(4)} nats per token: of two runs with other seeds one is "
            f"{1.96 * math.sqrt(2) * value:.3f} nats better in one pair of twenty, by chance.",
            sd,
            headline=True,
        ),
    ]


def _without_saturated(study: Crossed, saturated: NDArray[np.bool_]) -> Finding:
    """Return what the runs at the end of the scale carry, and the shares without them."""
    values, n = study.outcome.values, int(saturated.sum())
    text = (
        f"{n} of {len(values)} runs are at the end of the scale: their log odds say how many examples there are. They "
        f"would carry {carried(values, saturated):.0%} of the sum of squares, so they count as the nearest other run."
    )
    rows = ~saturated
    factors = {name: levels[rows] for name, levels in study.factors.items()}
    try:
        without = variance_shares(values[rows], factors, generator("without saturated"), merged=study.single)
        text += f" Without them, without intervals: {_values(without.shares)}."
    except NotEnoughData as gap:
        text += f" The shares without them: not enough data, needs {gap.needs}."
    return Finding("runs at the end of the scale", f"{n} of {len(values)}", text)


def _rates(observations: Observations, study: Crossed) -> None:
    """Add the outcomes given each seed of one factor, and tests of their differences by ranks."""
    first = ~study.rows.duplicated([f"seed_{s}" for s in study.subject.streams]).to_numpy()
    cells = study.rows[first]
    y = cells["y"].to_numpy(dtype=float)
    factors = {name: levels[first] for name, levels in study.factors.items()}
    hit, meaning = _good(observations, cells, study.outcome)
    frames, tests = [], {}
    for factor, levels in factors.items():
        blocks = [other for name, other in factors.items() if name != factor]
        with suppress(NotEnoughData):
            tests[factor] = heterogeneity(y, levels, generator(f"rates {factor}"), blocks=blocks)
    adjusted = dict(zip(tests, map(float, holm([test.p for test in tests.values()])), strict=True))
    for factor, test in tests.items():
        levels, others = factors[factor], {name: other for name, other in factors.items() if name != factor}
        seeds = cells[f"seed_{study.streams[factor]}"].to_numpy()
        names = {int(v): str(s) for v, s in zip(levels, seeds, strict=True)}
        frames.append(_level_table(levels, y, factor, test, names, study.outcome))
        study.tell(
            f"outcomes differ between {factor} seeds",
            f"p = {adjusted[factor]:.2g}",
            f"Do the outcomes differ between the {test.groups} {factor} seeds, at these {'/'.join(others)} seeds? "
            f"Ranks, permuted in whole blocks: p = {adjusted[factor]:.2g} (Holm, over {how_many(len(tests), 'test')}). "
            "A seed that matters only together with others can show here, too.",
        )
        if hit is None:
            continue
        diary = study.subject is EQUATIONS and has_diary_task(cells.iloc[0])
        with suppress(NotEnoughData):
            best = confirmed_ratio(hit, levels, list(others.values()))
            study.findings.append(_confirmed(best, factor, " and ".join(others), meaning, diary=diary))
    if frames:
        study.rates = pd.concat(frames, ignore_index=True)
        caption = "Outcome given each seed, one run per cell; p and q are from ranks, permuted in whole blocks"
        study.tabulate("conditional_rates", caption, study.rates, open=False)


def _good(observations: Observations, cells: pd.DataFrame, outcome: Outcome) -> tuple[np.ndarray | None, str]:
    if not outcome.is_loss:
        horizon = DIARY.horizon_of(cells)
        accuracy = accuracy_at(observations.curves_of(cells.index), cells.index, horizon)
        hit = (accuracy >= DIARY.normal_accuracy).to_numpy()
        if accuracy.notna().mean() > 0.9 and 5 <= hit.sum() <= len(hit) / 2:
            return hit, f"not normal at step {horizon:,}"
    y = cells["y"].to_numpy(dtype=float)
    hit = y < np.quantile(y, 0.25)
    if 5 <= hit.sum() <= len(hit) - 5:
        return hit, "in the quarter with the lowest loss" if outcome.is_loss else "among the fastest quarter"
    return None, ""


def _level_table(
    levels: np.ndarray, y: np.ndarray, factor: str, test: Heterogeneity, seeds: dict[int, str], result: Outcome
) -> pd.DataFrame:
    order = pd.Series(y).rank(pct=True)
    scale = "loss" if result.is_loss else "log time" if result.is_time else "log odds of a wrong answer"
    records = [
        {
            "stream": factor,
            "seed": seeds[level],
            "cells": int((levels == level).sum()),
            "mean rank %": round(100 * float(order[levels == level].mean()), 1),
            f"median {scale}": round(float(np.median(y[levels == level])), 3),
            "p": p,
        }
        for level, p in test.p_of.items()
    ]
    frame = pd.DataFrame(records)
    frame["q"] = benjamini_hochberg(frame["p"])
    frame[["p", "q"]] = frame[["p", "q"]].round(4)
    return frame.sort_values("mean rank %", kind="stable")


def _confirmed(e: Estimate, factor: str, other: str, meaning: str, *, diary: bool) -> Finding:
    """Return the ratio of rates at the best level, measured with seeds of the other factors that did not choose it."""
    told = e.high / e.low < FAR
    shown = f"{e.value:.2f} times ({e.low:.2f} to {e.high:.2f})" if told else "cannot be told"
    ratio = f"is {shown} that of the other {factor} seeds" if told else f"over that of the others {shown}"
    text = (
        f"Chosen on half of the {other} seeds and measured on the other halves, the rate of good seeds ({meaning}) of "
        f"the best {factor} seed {ratio}."
    )
    text += " The diary says 1.25 times for its order seed 8." * (told and diary and factor == "order")
    listed = factor == "order" or (told and not e.low <= 1 <= e.high)
    return Finding(f"best {factor} seed, confirmed", shown, text, e if told else None, listed=listed)


def _answer(subject: Subject) -> Callable[[Observations], Study]:
    conditions, answer = lambda of: subject.conditions(subject.rows(of)), partial(one, subject=subject)
    return by_condition(conditions, answer, Beside(_row), subject.settings)


def _row(study: Crossed) -> dict[str, object]:
    return {"outcome": study.outcome.name, **{f.label: f.shown for f in study.headlines}}


QUESTION = Question(
    "crossed",
    "Split, weights or order?",
    "Which source of randomness decides how soon a run generalises, and how much is chaos?",
    "grok sweep sweep=crossed",
    _answer(EQUATIONS),
    lambda observations: not EQUATIONS.rows(observations).empty,
    reads_designs=True,
)
LANGUAGE_QUESTION = Question(
    "language_crossed",
    "Weights, order or dropout?",
    "Which source of randomness decides a language model's final loss, and how much is chaos?",
    "",  # a corpus comes first: `grok prepare`
    _answer(LANGUAGE),
    lambda observations: not LANGUAGE.rows(observations).empty,
    any_task=False,
)
