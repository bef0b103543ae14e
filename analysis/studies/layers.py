"""Layer transplants: which layers' initial weights make a seed fast."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pandas as pd
from scipy import stats

from grok.analysis.criteria import DIARY, MOST_CENSORED, Outcome, accuracy_at, change_in_words, outcome, wrong_log_odds
from grok.analysis.observations import Observations, describe_task, floats, in_words, seed_names, varying_columns
from grok.analysis.purposes import places, roles
from grok.analysis.statistics.estimate import NotEnoughData, generator, holm, student
from grok.analysis.statistics.shapley import FLAT, Additivity, Attribution, additivity, attribute, p_of_no_pattern
from grok.analysis.studies.base import ALARM, Finding, Question, Study
from grok.streams import derive_seed

# The transplants of a store: one recipient, one donor, and their runs.

STREAMS: Final = ("split", "order")
"""Streams that a transplant can exchange in addition to layers."""


@dataclass(frozen=True)
class Transplant:
    """One recipient, one donor, and every run in which some tensors of the recipient come from the donor."""

    recipient: str
    """The recipient in words: ``seed 0``, or ``init seed 4711`` if no master seed is known."""
    donor: str
    factors: list[str]
    rows: pd.DataFrame
    design: np.ndarray
    """(runs, factors): 1 if the factor comes from the donor, else 0."""
    setting: str = ""
    """Settings that differ between the transplants of the store."""
    streams: Mapping[str, str] = field(default_factory=dict)
    """The donor's streams that are factors, in words: ``order seed 8``, or ``order of seed 23``."""

    @property
    def name(self) -> str:
        """``seed 0 ← seed 23``: recipient, donor."""
        donor = ", ".join([self.donor, *self.streams.values()])
        return f"{self.recipient} ← {donor}" + (f" ({self.setting})" if self.setting else "")

    @property
    def sentence(self) -> str:
        """The exchange in words: ``Seed 0 with seed 23's initial weights, order and split kept``."""
        kept = [stream for stream in ("order", "split") if stream not in self.streams]
        others = "".join(f" and {words}" for words in self.streams.values())
        held = f", {' and '.join(kept)} kept" if kept else ""
        return f"{self.recipient.capitalize()} with {self.donor}'s initial weights{others}{held}"


def transplants(observations: Observations) -> list[Transplant]:
    """Return the transplants of the store's ``layers`` designs.

    Designs of equal settings, recipient and donor are one transplant. Layers that were always exchanged together are
    one factor. The recipient's own runs are the cells with nothing exchanged and its other repeats with weights moved
    by a unit in the last place, never the run for which it was chosen.
    """
    purposes = observations.once(roles)
    cells, again = purposes.of("cell", kinds=("layers",)), purposes.of("child", kinds=("repeat",))
    cells = cells[[_donor(unit) is not None for unit in cells["unit"]]]
    if cells.empty:
        return []
    ulps = again["run_id"][[unit.get("kind") == "ulp" for unit in again["unit"]]].tolist()
    rows, place = observations.measured([*cells["run_id"], *ulps]), observations.once(places)
    cells = cells[cells["run_id"].isin(rows.index)]
    settings = varying_columns(rows.loc[cells["run_id"].unique()])
    names = {stream: seed_names(observations.arithmetic, stream) for stream in ("init", *STREAMS)}
    masters = [unit.get(who) for unit in cells["unit"] for who in ("recipient", "donor")]
    names["init"] = {derive_seed(m, "init"): f"seed {m}" for m in masters if isinstance(m, int)} | names["init"]
    result = []
    for (*_, init, donor, _, factors), exchanged in sorted(_exchanged(cells, rows, settings).items()):
        every = rows.loc[list(exchanged)]
        own = set(place[[run for run in exchanged if every.at[run, "layers"] == "{}" and not exchanged[run]]])
        beside = rows.loc[rows.index.intersection(ulps).difference(every.index)]
        beside = beside[place[beside.index].isin(own) & _as_long(beside, every)]
        every = pd.concat([every, beside])
        maps = every["layers"].map(json.loads)
        if maps.map(bool).sum() < 2:
            continue
        words = {s: f"{s} of {names[s][seed]}" if seed in names[s] else f"{s} seed {seed}" for s, seed in factors}
        columns, design = _design(maps, exchanged, list(words))
        differing = ", ".join(f"{c.removeprefix('config.')}={in_words(every.iloc[0][c])}" for c in settings)
        recipient, other = (names["init"].get(seed, f"init seed {seed}") for seed in (init, donor))
        result.append(Transplant(recipient, other, columns, every, design, differing, words))
    return result


def _exchanged(
    cells: pd.DataFrame, rows: pd.DataFrame, settings: list[str]
) -> dict[tuple[Any, ...], dict[str, frozenset[str]]]:
    """Return the streams that each run has from the donor, by transplant.

    A transplant is named by the recipient's split, order and init seed, the donor's init seed, the settings, and the
    streams that are factors, with the donor's seeds.
    """
    label = rows.groupby(settings, dropna=False).ngroup() if settings else pd.Series(0, index=rows.index)
    designs: dict[tuple[Any, ...], dict[str, frozenset[str]]] = {}
    for run, design, unit in cells[["run_id", "design_id", "unit"]].itertuples(index=False, name=None):
        key = design, int(label[run]), unit.get("recipient"), _donor(unit)
        given = map(str, [*unit.get("exchanged", ()), *unit.get("streams", ())])  # by the donor
        designs.setdefault(key, {})[run] = frozenset(STREAMS) & frozenset(given)
    exchanges: dict[tuple[Any, ...], dict[str, frozenset[str]]] = {}
    seeds: Any = rows
    for (_, setting, _, donor), exchanged in designs.items():
        moved = frozenset().union(*exchanged.values())
        own = next((run for run, streams in exchanged.items() if not streams), None)
        whole = next((run for run, streams in exchanged.items() if streams == moved), None)
        if own is None or whole is None:
            continue  # not trained yet
        split, order, init = (int(seeds.at[own, f"seed_{stream}"]) for stream in (*STREAMS, "init"))
        factors = tuple((s, int(seeds.at[whole, f"seed_{s}"])) for s in STREAMS if s in moved)
        exchanges.setdefault((split, order, init, donor, setting, factors), {}).update(exchanged)
    return exchanges


def _as_long(repeats: pd.DataFrame, cells: pd.DataFrame) -> pd.Series:
    """Return whether repeats are perturbed as the cells are, and as long: a shorter one would censor all times."""
    alike = repeats["config.perturb.ulps"].isin(cells["config.perturb.ulps"].unique())
    long: pd.Series = repeats["config.train.steps"] >= cells["config.train.steps"].min()
    return alike & long


def _donor(unit: Mapping[str, Any]) -> int | None:
    """Return the init seed of the donor's weights."""
    seed, master = unit.get("donor_init"), unit.get("donor")
    if isinstance(seed, int):
        return seed
    return derive_seed(master, "init") if isinstance(master, int) else None


def _design(
    maps: pd.Series, exchanged: Mapping[str, frozenset[str]], streams: list[str]
) -> tuple[list[str], np.ndarray]:
    """Return the names of the factors, and the design (runs, factors)."""
    columns: dict[bytes, tuple[list[str], np.ndarray]] = {}
    for layer in sorted({name for layers in maps for name in layers}):
        bits = np.array([float(layer in layers) for layers in maps])
        columns.setdefault(bits.tobytes(), ([], bits))[0].append(layer)
    for stream in streams:
        columns[stream.encode()] = ([stream], np.array([float(stream in exchanged.get(run, ())) for run in maps.index]))
    return [" + ".join(names) for names, _ in columns.values()], np.column_stack([b for _, b in columns.values()])


# Layer transplants: which layers' initial weights make a seed fast.

ADDITIVE = 0.8
"""Least share of the variance that the layers explain one by one, by its whole interval, at which they have shares."""
MOST_TOLD = 4
"""Largest number of transplants of one set of layers that get a sentence each; more are rows of a table."""


@dataclass(frozen=True)
class Result:
    """The result of one transplant."""

    transplant: Transplant
    outcome: Outcome
    attribution: Attribution
    additivity: Additivity
    accuracy: np.ndarray
    """Validation accuracy of each run where the outcome is its log odds; else the step of generalisation."""
    moving: list[str]
    """The layers whose exchange changed a bit."""
    adds_up: bool = False
    """Whether the layers' effects add up, so that each has a share."""
    act_together: bool = False
    """Whether layers are seen to depend on each other."""

    @property
    def is_super(self) -> bool:
        """Whether the recipient is super in every run of its own; False where the outcome is a time."""
        return not self.outcome.is_time and bool(self.accuracy[self.runs(())].min() > DIARY.super_accuracy)

    @property
    def clear(self) -> bool:
        """Whether the interval of the total effect excludes 0; otherwise shares of it mean nothing."""
        return self.attribution.total.low > 0 or self.attribution.total.high < 0

    def runs(self, exchanged: Sequence[str]) -> np.ndarray:
        """Return flags of the runs with exactly these layers from the donor, whatever changes no bit."""
        columns = [self.transplant.factors.index(f) for f in self.moving]
        wanted = [float(f in exchanged) for f in self.moving]
        return np.asarray((self.transplant.design[:, columns] == wanted).all(1))

    def shown(self, exchanged: Sequence[str]) -> str:
        """Return the mean accuracy, or the geometric mean of the steps, with these layers exchanged."""
        at = self.runs(exchanged)
        if not at.any():
            return "not run"
        end = np.log(self.outcome.horizon) if self.outcome.censored else np.inf  # with which late runs count
        return (
            f"{'at least ' * bool((values := self.outcome.values[at]).max() >= end)}{np.exp(values.mean()):,.0f}"
            if self.outcome.is_time
            else f"{self.accuracy[at].mean():.1%}"
        )

    @property
    def change(self) -> str:
        """What exchanging everything does, in words: odds are given only where both sides have wrong answers."""
        change = change_in_words(self.attribution.total, self.outcome.is_time)
        if self.outcome.is_time:
            return change
        ends = self.runs(()) | self.runs(self.moving)
        odds = self.outcome.saturated is None or not self.outcome.saturated[ends].any()
        return f"accuracy {self.shown(self.moving)} instead of {self.shown(())}" + f" ({change})" * odds


@dataclass(kw_only=True)
class Layers(Study):
    """Whether the layers act one by one or together, and their Shapley shares where they add up."""

    is_time: bool
    results: list[Result]
    shares: pd.DataFrame
    """Per transplant whose layers add up, and layer: share, low, high, control."""
    cells: pd.DataFrame
    """Per transplant and combination: exchanged, runs, and the mean, lowest and highest accuracy or step."""


def analyse(observations: Observations) -> Layers:
    """Return the answer for every transplant with enough runs for an estimate.

    Raises:
        NotEnoughData: none has enough.
    """
    results: list[Result] = []
    outcomes, gap = _outcomes(observations)
    for transplant, seen in outcomes:
        try:
            ceiling = np.log(seen.horizon) if seen.is_time else np.inf
            attribution = attribute(transplant.design, seen.values, transplant.factors, seen.rounding, ceiling)
            moving = [f for f in transplant.factors if not _identical(transplant, f)]
            design = transplant.design[:, [transplant.factors.index(f) for f in moving]]
            table = additivity(design, seen.values, generator(f"additive {transplant.name}"), seen.rounding, ceiling)
            curves = observations.curves_of(transplant.rows.index)
            accuracy = np.exp(seen.values)
            if not seen.is_time:
                accuracy = floats(accuracy_at(curves, transplant.rows.index, int(seen.horizon)))
            results.append(Result(transplant, seen, attribution, table, accuracy, moving))
        except NotEnoughData as problem:
            gap = problem
    if not results:
        raise gap or NotEnoughData("runs with seeds.layers")
    # One scale cannot have times and accuracies: keep the kind with more transplants.
    is_time = sum(r.outcome.is_time for r in results) * 2 >= len(results)
    judged = _by_layers([r for r in results if r.outcome.is_time == is_time])  # super apart: others hardly vary
    sets = [its for same in judged for kind in (True, False) if (its := [r for r in same if r.is_super == kind])]
    p = [p_of_no_pattern([r.additivity for r in same]) for same in sets]
    for i, (same, value) in enumerate(zip(sets, p, strict=True)):
        interact = holm([max(r.additivity.interact, r.additivity.differ) for r in same])
        sets[i] = [
            replace(r, adds_up=value <= ALARM and r.additivity.share.low >= ADDITIVE, act_together=bool(q <= ALARM))
            for r, q in zip(same, interact, strict=True)
        ]
    kept = [r for same in sets for r in same]
    study = Layers(
        is_time=is_time,
        results=kept,
        counted=[run for r in kept for run in r.transplant.rows.index],
        shares=pd.DataFrame([record for r in kept if r.adds_up for record in _records(r)]),
        cells=pd.concat([_cells(r) for r in kept], ignore_index=True),
    )
    _notes(study, len(results) - len(kept))
    study.findings += [_together(same, value) for same, value in zip(sets, p, strict=True)]
    sets = _by_layers(kept)
    for same in sets:
        if (high := _still_high(same)) is not None:
            study.findings.append(high)
        for result in same:
            _findings(study, result, in_words=len(same) <= MOST_TOLD)
    _tables(study, [r for same in sets if len(same) > MOST_TOLD for r in same])
    return study


def _together(same: list[Result], p: float) -> Finding:
    """Return whether the layers of these transplants act one by one or together: what comes before any share.

    That they are not seen to add up does not show that they act together.
    """
    # what the layers explain is of those whose combinations differ: nothing is to be explained in the others
    told = [r for r in same if r.clear or r.additivity.differ <= ALARM] or same
    n, shares, rest = len(same), [r.additivity.share for r in told], len(same) - len(told)
    layers, adding = ", ".join(same[0].transplant.factors), sum(r.adds_up for r in same)
    acting = sum(r.act_together and not r.adds_up for r in same)
    whose = "" if same[0].outcome.is_time else f"recipient {'' if same[0].is_super else 'not '}super"
    alone = shares[0].percent(0) if len(shares) == 1 else f"{np.mean([e.value for e in shares]):.0%} in the mean"
    until = f" up to step {same[0].outcome.horizon:,.0f}" * any(r.outcome.is_time and r.outcome.censored for r in same)
    low, middle, high = np.quantile(np.mean([r.additivity.chance for r in told], 0), [0.025, 0.5, 0.975])
    who = f"{n} transplant{'s' * (n > 1)}" + (f" ({whose})" if whose else "")
    text = f"{who} exchange{'s' * (n == 1)} {layers}"
    text += f"; the combinations of {rest} are not seen to differ by more than their repeats do" * bool(rest) + ". "
    only = acting and not adding  # then no layer has a share, also not all of them together
    if acting:
        partly = f" in {acting} of them" * (acting < n)
        text += (
            f"They act together{partly}{' for these two seeds' * (n == 1)}: what one layer changes depends on others, "
            f"so none is given a share of its own.{_alone(told)} "
        )
    if adding:
        text += "Their effects add up" + f" in {adding} of them, with shares below" * (n > 1)
        text += f"; of {n - adding - acting} these runs do not tell" * (adding + acting < n) + ". "
    alike = all(r.additivity.differ > ALARM and not r.clear for r in same)
    if alike:
        text += "The combinations are not seen to differ by more than their repeats do, so no share can be told."
    else:
        text += (
            (f"A sum of their effects would fit {alone}" if only else f"One by one, the layers explain {alone}")
            + f" of the variance between combinations{until}"
            + " of the others" * bool(rest)
            + f"; shuffled tables show {100 * middle:.0f}% ({100 * low:.0f} to {100 * high:.0f}; p = {p:.2g}"
            + f", of all {n} transplants" * bool(rest)
            + ")"
            + "; an outcome that takes two layers together gives two thirds" * bool(only)
            + ". "
        )
    if not (adding or acting or alike):
        text += "These combinations do not tell whether their effects add up or depend on each other, so no shares."
    changed = [r for r in same if r.clear]
    if n > MOST_TOLD:
        worse = sum(r.attribution.total.value > 0 for r in changed)
        words = ("slower", "faster") if same[0].outcome.is_time else ("worse", "better")
        text += (
            f" Exchanging all of them is clearly {words[0]} in {worse} and {words[1]} in {len(changed) - worse} (95% "
            "intervals of repeats, without a correction for their number)."
        )
    label = f"layers together, {layers}" + (f", {whose}" if whose else "")
    shown = "they act together" if only else "cannot be told" if alike else alone
    estimate = shares[0] if n == 1 and not alike else None
    return Finding(label, shown, " ".join(text.split()), estimate, headline=True)


def _alone(told: list[Result]) -> str:
    """Return which layers are seen to change the outcome when only they are exchanged, in a sentence."""
    p: dict[tuple[str, str], float] = {}
    for r in told:
        own = r.outcome.values[r.runs(())]
        for layer in r.moving:
            its = r.outcome.values[r.runs([layer])]
            if min(len(own), len(its)) > 1:
                value, error, freedom = student(its, own)
                p[layer, r.transplant.name] = 2 * float(stats.t.sf(abs(value) / max(error, FLAT), freedom))
    if not p:
        return ""
    moved = Counter(layer for (layer, _), q in zip(p, holm(list(p.values())), strict=True) if q <= ALARM)
    if not moved:
        return f" No layer alone is seen to change the outcome (t tests, Holm over {len(p)})."
    counts = (f"{layer}{f' in {k} of {len(told)}' * (len(told) > 1)}" for layer, k in sorted(moved.items()))
    return f" Seen to change the outcome alone (t tests, Holm over {len(p)}): {', '.join(counts)}."


def _still_high(same: list[Result]) -> Finding | None:
    """Return how often recipients that are super stay so with a part of the donor's weights; None without any."""
    high = [r for r in same if r.is_super]
    if not high:
        return None
    parts = []
    for exchanged in [*([f] for f in high[0].moving), high[0].moving]:
        runs = np.concatenate([r.accuracy[r.runs(exchanged)] for r in high])
        words = exchanged[0] if len(exchanged) == 1 else "all"
        parts.append(
            f"{words}: {int((runs > DIARY.super_accuracy).sum())} of {len(runs)} (median {np.median(runs):.1%})"
        )
    n = len({r.transplant.recipient for r in high})
    text = (
        f"{n} recipient{'s are' if n > 1 else ' is'} above {DIARY.super_accuracy:.0%} in every run of their own "
        "(these runs chose them, so a part of each fall can be chance). "
        f"Runs that stay so with only this exchanged: {'; '.join(parts)}."
    )
    return Finding(f"still super, {', '.join(high[0].transplant.factors)}", "; ".join(parts), text)


def _by_layers(results: list[Result]) -> list[list[Result]]:
    """Return the transplants with equal layers together, those with the most transplants first."""
    sets: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        sets.setdefault(tuple(sorted(result.transplant.factors)), []).append(result)
    return sorted(sets.values(), key=len, reverse=True)


def _outcomes(observations: Observations) -> tuple[list[tuple[Transplant, Outcome]], NotEnoughData | None]:
    """Return each transplant with its outcome, and what the last one without an outcome needs.

    If most runs generalise in some transplants and few in others, all have the odds of a wrong answer, where these are
    known, and most transplants have them anyway or most runs are inside their scale. To leave out either kind would
    choose transplants by their outcome: it would drop those, for example, in which a fast recipient stays fast.
    """
    seen: list[tuple[Transplant, Outcome]] = []
    gap: NotEnoughData | None = None
    for transplant in observations.once(transplants):
        try:
            seen.append((transplant, outcome(observations, transplant.rows)))
        except NotEnoughData as problem:
            gap = problem
    if len({found.is_time for _, found in seen}) == 2:
        try:
            odds = [(transplant, wrong_log_odds(observations, transplant.rows)) for transplant, _ in seen]
        except NotEnoughData:
            return seen, gap
        usual = 2 * sum(found.is_time for _, found in seen) < len(seen)
        if usual or max(found.censored for _, found in odds) <= MOST_CENSORED:
            return odds, gap
    return seen, gap


def _records(result: Result) -> list[dict[str, Any]]:
    attribution = result.attribution
    return [
        {
            "transplant": result.transplant.name,
            "layer": layer,
            "Shapley share": e.value,
            "low": e.low,
            "high": e.high,
            "% of the total": round(100 * e.value / attribution.total.value) if result.clear else None,
            "no bit changed": layer not in result.moving,
        }
        for layer, e in attribution.shapley.items()
    ]


def _cells(result: Result) -> pd.DataFrame:
    """Return each combination with its runs, and the mean, lowest and highest accuracy or step."""
    t = result.transplant
    names = [" + ".join(f for f, bit in zip(t.factors, bits, strict=True) if bit) or "nothing" for bits in t.design]
    runs = pd.DataFrame({"transplant": t.name, "exchanged": names, "of": result.accuracy})
    of = runs.groupby(["transplant", "exchanged"], sort=False)["of"]
    return of.agg(runs="size", mean="mean", lowest="min", highest="max").round(4).reset_index()


def _identical(transplant: Transplant, factor: str) -> bool:
    """Return whether exchanging only ``factor`` is seen never to change the final weights."""
    i, rows = transplant.factors.index(factor), transplant.rows
    runs = pd.DataFrame({"from": transplant.design[:, i], "weights": rows["weights_hash"].to_numpy()})
    rest = pd.DataFrame(np.delete(transplant.design, i, 1)).assign(
        perturb=floats(rows["config.seeds.perturb"]), ulps=floats(rows["config.perturb.ulps"])
    )
    kinds = runs.groupby([rest[name] for name in rest], dropna=False).nunique()
    pairs = kinds[kinds["from"] == 2]
    return len(pairs) > 0 and bool((pairs["weights"] == 1).all())


def _notes(study: Layers, left_out: int) -> None:
    first = study.results[0]
    runs = sum(len(r.transplant.rows) for r in study.results)
    study.notes.append(
        f"{len(study.results)} transplant{'s' * (len(study.results) > 1)}, {runs:,} runs of "
        f"{describe_task(first.transplant.rows.iloc[0])}. Outcome: {first.outcome.name}. A transplant is written "
        f"recipient ← donor{'; positive shares: slower with its weights, negative: faster' * bool(len(study.shares))}."
    )
    study.notes.append(
        "Intervals and tests of a transplant are for its two seeds (repeated with weights moved by a unit in the last "
        "place), not for other pairs. They take these repeats to scatter alike in all combinations, also in those that "
        "were not repeated; where some scatter more, intervals are too narrow and differences are seen too often."
    )
    censored = max(r.outcome.censored for r in study.results)
    if study.is_time and censored:
        study.notes.append(
            f"Up to {censored:.0%} of a transplant's runs had not generalised by the end and count with that step: "
            "factors between slow and fast can be larger than shown."
        )
    if left_out:
        study.notes.append(f"{left_out} transplants with another kind of outcome are left out.")


def _findings(study: Layers, result: Result, in_words: bool) -> None:
    t, attribution = result.transplant, result.attribution
    text = f"{t.sentence}{f' ({t.setting})' if t.setting else ''}: {result.change}"
    if study.is_time:
        text += " than with its own" * result.clear
    ranked = sorted(result.moving, key=lambda f: -abs(attribution.shapley[f].value))
    if result.adds_up and result.clear:
        text += f". Of that change: {', '.join(f'{f} {attribution.parts[f].percent(0)}' for f in ranked)}"
    elif len(ranked) > 1:
        alone = ", ".join(f"{f} {result.shown([f])}" for f in result.moving)
        own = f"With its own weights {result.shown(())}; with" if study.is_time else "With"
        text += f". {own} only one exchanged, without intervals: {alone}"
    estimate = attribution.total if study.is_time else None
    study.tell(f"all layers, {t.name}", result.change, f"{text}.", estimate, headline=in_words, listed=in_words)
    for f in ranked if result.adds_up else []:
        e = attribution.shapley[f]
        shown = f"{e.value:+.2f} ({e.low:+.2f} to {e.high:+.2f})"
        study.tell(f"{f}, {t.name}", shown, f"{t.name}: {f} {shown}.", e, listed=False)
    for f in (f for f in t.factors if f not in result.moving):
        text = (
            f"{f} starts constant (negative control, {t.name}): exchanging its seed changed no bit of the weights, "
            "as expected."
        )
        study.tell(f"{f} (negative control), {t.name}", "no bit changed", text)


def _tables(study: Layers, many: list[Result]) -> None:
    what = "geometric mean of the steps of generalisation" if study.is_time else "mean validation accuracy"
    for number, same in enumerate(_by_layers(many)):
        rows = [
            {
                "recipient ← donor": r.transplant.name,
                "own weights": r.shown(()),
                **{f"only {f} exchanged": r.shown([f]) for f in r.moving},
                "all exchanged": r.shown(r.moving),
            }
            for r in same
        ]
        name = "transplants" + f"_{number + 1}" * (number > 0)
        study.tabulate(name, f"What the exchange of layers does ({what})", rows)
    if len(study.shares):
        caption = "Shapley shares where the layers add up (changes of the outcome)"
        study.tabulate("shares", caption, study.shares.round(4))
    caption = f"Every combination of layers ({'steps of generalisation' if study.is_time else 'validation accuracy'})"
    study.tabulate("combinations", caption, study.cells, open=False)


QUESTION = Question(
    "layers",
    "Which layers?",
    "Which layers' initial weights carry a seed's speed?",
    "grok layers --recipient 0 --donor 1",
    analyse,
    lambda observations: bool(observations.once(transplants)),
    reads_designs=True,
)
