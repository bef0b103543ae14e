"""Layer transplants: which layers' initial weights make a seed fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.observations import Observations, describe_task
from analysis.purposes import roles
from analysis.statistics.dyads import mean_over_pairs
from analysis.statistics.estimate import Estimate, NotEnoughData
from analysis.statistics.resampling import generator
from analysis.statistics.shapley import Attribution, Null, additive_share, attribute, shuffled
from analysis.studies.base import Finding, Question, Study, Table
from analysis.studies.outcomes import (
    MOST_CENSORED,
    Outcome,
    change_in_words,
    outcome,
    ratio_in_words,
    wrong_log_odds,
)
from analysis.studies.transplants import Transplant, transplants

ALARM = 0.05
"""p-value (Holm, over the layers of a transplant) below which a layer is named."""
MOST_TOLD = 4
"""Largest number of transplants of one set of layers that get a sentence each; more are rows of a table."""
FEWEST_POOLED = 3
"""Smallest number of pairs of seeds for a mean over transplants."""


@dataclass(frozen=True)
class Result:
    """The result of one transplant."""

    transplant: Transplant
    outcome: Outcome
    attribution: Attribution
    null: Null
    """The shares of the same outcomes shuffled over the combinations."""

    @property
    def clear(self) -> bool:
        """Whether the interval of the total effect excludes 0; otherwise shares of it mean nothing."""
        return self.attribution.total.low > 0 or self.attribution.total.high < 0


@dataclass(kw_only=True)
class Layers(Study):
    """Shapley shares of the layers for each transplant."""

    is_time: bool
    results: list[Result]
    shares: pd.DataFrame
    """Per transplant and layer: share, low, high, main effect, control."""
    interactions: pd.DataFrame
    pooled: pd.DataFrame
    """Per layer, the mean over transplants; empty if there are too few."""
    about_pooled: str
    """Which transplants are in ``pooled``, and for which other pairs of seeds its intervals hold."""


def analyse(observations: Observations, question: Question) -> Layers:
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
            moving = [i for i, f in enumerate(transplant.factors) if not _identical(transplant, f)]
            names = [transplant.factors[i] for i in moving]
            null = shuffled(transplant.design[:, moving], seen.values, names, generator(f"null {transplant.name}"))
            results.append(Result(transplant, seen, attribution, null))
        except NotEnoughData as problem:
            gap = problem
    if not results:
        raise gap or NotEnoughData("runs with seeds.layers")
    # One scale cannot have times and accuracies: keep the kind with more transplants.
    is_time = sum(r.outcome.is_time for r in results) * 2 >= len(results)
    kept = [r for r in results if r.outcome.is_time == is_time]
    pooled, about_pooled = _pooled(kept)
    study = Layers(
        name=question.name,
        title=question.title,
        question=question.question,
        is_time=is_time,
        results=kept,
        shares=pd.DataFrame([record for r in kept for record in _records(r)]),
        interactions=pd.DataFrame(
            [
                {
                    "transplant": r.transplant.name,
                    "layers": " × ".join(pair),
                    "interaction": e.value,
                    "low": e.low,
                    "high": e.high,
                }
                for r in kept
                for pair, e in r.attribution.interactions.items()
            ],
            columns=["transplant", "layers", "interaction", "low", "high"],
        ),
        pooled=pooled,
        about_pooled=about_pooled,
    )
    _notes(study, len(results) - len(kept))
    study.notes += observations.once(roles).said
    many: list[Result] = []
    for same in _by_layers(kept):
        if len(same) > MOST_TOLD:
            study.findings.append(_overview(same, study.is_time))
            many += same
        for result in same:
            _findings(study, result, in_words=len(same) <= MOST_TOLD)
    _tables(study, many)
    return study


def _by_layers(results: list[Result]) -> list[list[Result]]:
    """Return the transplants with equal layers together, those with the most transplants first."""
    sets: dict[tuple[str, ...], list[Result]] = {}
    for result in results:
        sets.setdefault(tuple(sorted(result.transplant.factors)), []).append(result)
    return sorted(sets.values(), key=len, reverse=True)


def _overview(results: list[Result], is_time: bool) -> Finding:
    """Return how many of several transplants change the outcome clearly, and in which direction."""
    totals = [r.attribution.total.value for r in results if r.clear]
    worse, better = sorted(v for v in totals if v > 0), sorted(-v for v in totals if v < 0)
    layers = ", ".join(results[0].transplant.factors)
    words = ("slower", "faster") if is_time else ("larger odds of a wrong answer", "smaller odds of a wrong answer")
    parts = [
        f"{len(changes)} to {word} (by a factor of {ratio_in_words(np.exp(changes[0]))}"
        + (f" to {ratio_in_words(np.exp(changes[-1]))})" if len(changes) > 1 else ")")
        for changes, word in zip((worse, better), words, strict=True)
        if changes
    ]
    text = (
        f"{len(results)} transplants exchange {layers}. {len(totals)} of them change the outcome clearly: the 95% "
        "interval excludes no change, without a correction for their number. "
        + (f"Of these {', '.join(parts)}." if parts else "")
    ).strip()
    shown = f"{len(totals)} of {len(results)} clear"
    return Finding(f"transplants of {layers}", shown, text, headline=True)


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
            "p (shuffled)": result.null.p.get(layer),
            "main effect": attribution.main[layer].value,
            "main low": attribution.main[layer].low,
            "main high": attribution.main[layer].high,
            "no bit changed": _identical(result.transplant, layer),
        }
        for layer, e in attribution.shapley.items()
    ]


def _pooled(results: list[Result]) -> tuple[pd.DataFrame, str]:
    """Return the mean shares over pairs of seeds with one set of layers, and a note about them; empty if too few.

    The shares are signed towards the faster weights. Only transplants with a clear total have a sign: choosing the sign
    of noise would turn every mean into an effect. A pair that was exchanged in both directions counts once, with its
    mean. With two layers the difference of their shares is a row, too: it is as often positive as negative if the
    layers are alike, whoever was chosen as recipient.
    """
    none = pd.DataFrame(columns=["layer", "share", "low", "high"]), ""
    clear = [r for r in results if r.clear]
    sets = sorted({tuple(r.transplant.factors) for r in clear})
    common = max(sets, key=lambda s: sum(tuple(r.transplant.factors) == s for r in clear), default=())
    chosen = [r for r in clear if tuple(r.transplant.factors) == common]
    columns = {"all layers": [r.attribution.total for r in chosen]}
    columns |= {f: [r.attribution.shapley[f] for r in chosen] for f in common}
    turn = [np.sign(r.attribution.total.value) for r in chosen]
    values = pd.DataFrame(
        {f: [t * e.value for t, e in zip(turn, effects, strict=True)] for f, effects in columns.items()}
    )
    if len(common) == 2:
        less, more = values[list(common)].mean().sort_values().index
        values[f"({more}) - ({less})"] = values[more] - values[less]
    whose = [(r.transplant.recipient, r.transplant.donor) for r in chosen]
    pairs = [" ".join(sorted(pair)) for pair in whose]
    by_pair = values.groupby(pairs).mean()
    first = dict(zip(reversed(pairs), reversed(whose), strict=True))
    sides = [first[pair][0] for pair in by_pair.index], [first[pair][1] for pair in by_pair.index]
    if len(by_pair) < FEWEST_POOLED:
        return none
    try:
        means = {f: mean_over_pairs(by_pair[f].to_numpy(dtype=float), sides) for f in by_pair}
    except NotEnoughData:
        return none
    (*_, (_, open_sides)) = means.values()
    scope = {
        (0,): "other recipients of the same donors",
        (1,): "other donors of the same recipients",
        (0, 1): "other recipients and donors, too",
    }[open_sides]
    rows = [{"layer": f, "share": e.value, "low": e.low, "high": e.high} for f, (e, _) in means.items()]
    note = (
        f"The mean is over the {len(chosen)} of {len(results)} transplants that have these layers and a clear total. "
        "Each is taken in the direction that makes its run faster, so the total is positive by construction; only the "
        "shares and their difference are informative. Transplants with a common seed are not independent: the "
        f"intervals respect that, and hold for {scope}."
    )
    return pd.DataFrame(rows), note


def _identical(transplant: Transplant, factor: str) -> bool | None:
    """Return whether exchanging only ``factor`` never changed the final weights (None: no such pair of runs)."""
    seen = None
    i = transplant.factors.index(factor)
    rest = [j for j in range(len(transplant.factors)) if j != i]
    rows = transplant.rows
    key = [
        (*transplant.design[r, rest], p if pd.notna(p) else -1, u)
        for r, (p, u) in enumerate(zip(rows["config.seeds.perturb"], rows["config.perturb.ulps"], strict=True))
    ]
    groups: dict[Any, dict[float, str]] = {}
    for k, bit, digest in zip(key, transplant.design[:, i], rows["weights_hash"], strict=True):
        groups.setdefault(k, {})[bit] = digest
    for pair in groups.values():
        if len(pair) == 2:
            seen = (seen is None or seen) and pair[0.0] == pair[1.0]
    return seen


def _notes(study: Layers, left_out: int) -> None:
    first = study.results[0]
    runs = sum(len(r.transplant.rows) for r in study.results)
    study.notes.append(
        f"{len(study.results)} transplant{'s' * (len(study.results) > 1)}, {runs:,} runs of "
        f"{describe_task(first.transplant.rows.iloc[0])}. Outcome: {first.outcome.name}. A transplant is written "
        "recipient ← donor; positive shares mean slower with the donor's weights, negative ones faster."
    )
    if len(study.results) > 1:
        study.notes.append(
            "The interval of a transplant is for its two seeds (repeated with weights moved by a unit in the last "
            "place), not for other pairs. It takes these repeats to scatter alike in all combinations; where those of "
            "one combination scatter more, it is too narrow."
        )
    if len(study.pooled):
        study.notes.append(study.about_pooled)
    elif len(study.results) > 1:
        study.notes.append(
            f"No mean over transplants: it needs {FEWEST_POOLED} pairs of seeds with the same layers, of as many "
            "recipients or donors, in which exchanging everything changes the outcome clearly."
        )
    censored = max(r.outcome.censored for r in study.results)
    if study.is_time and censored:
        study.notes.append(
            f"Up to {censored:.0%} of a transplant's runs had not generalised by the end and count with that step: "
            "factors between slow and fast can be larger than shown."
        )
    if not all(r.attribution.full for r in study.results):
        study.notes.append("Fractional design: shares and intervals hold only if no three layers act together.")
    if left_out:
        study.notes.append(f"{left_out} transplants with another kind of outcome are left out.")


def _findings(study: Layers, result: Result, in_words: bool) -> None:
    t, attribution = result.transplant, result.attribution
    total = change_in_words(attribution.total, study.is_time)
    text = f"{t.sentence}{f' ({t.setting})' if t.setting else ''}: {total}" + (
        "." if attribution.total.low <= 0 <= attribution.total.high else " than with its own."
    )
    controls = [f for f in t.factors if _identical(t, f)]
    ranked = sorted((f for f in t.factors if f not in controls), key=lambda f: -abs(attribution.shapley[f].value))
    if result.clear:
        parts = [
            f"{f} {e.value / attribution.total.value:.0%} ({' to '.join(_percents(e, attribution.total.value))})"
            for f in ranked
            for e in [attribution.shapley[f]]
        ]
        text += f" Of that change: {', '.join(parts)}."
    if result.null.p:
        beyond = [f for f in ranked if result.null.p.get(f, 1.0) < ALARM]
        text += (
            f" If the same outcomes are shuffled over the combinations, the largest share reaches "
            f"±{result.null.reach:.2f} by chance (log scale, 95%)"
            + (f"; larger: {', '.join(beyond)}." if beyond else "; no layer's share is larger.")
        )
    elif len(ranked) > 1:
        text += " Too few combinations to test whether the shares are larger than without any pattern."
    study.findings.append(
        Finding(f"all layers, {t.name}", total, text, attribution.total, headline=in_words, listed=in_words)
    )
    try:
        rng = generator(f"additive share {t.name}")
        alone = additive_share(t.design, result.outcome.values, rng, result.outcome.rounding)
        text = f"Alone, the layers explain {alone.percent(0)} of the variance between combinations ({t.name})" + (
            "; the rest depends on which other layers are exchanged." if alone.value < 0.8 else "."
        )
        if result.null.additive is not None and result.null.additive_p is not None:
            null = result.null.additive
            text += (
                f" Shuffled tables show {100 * null[0]:.0f}% ({100 * null[1]:.0f} to {100 * null[2]:.0f}; "
                f"p = {result.null.additive_p:.2g})."
            )
        study.findings.append(Finding(f"layers one by one, {t.name}", alone.percent(0), text, alone, listed=in_words))
    except NotEnoughData:
        pass  # a fractional design: the notes say so
    for f in ranked:
        e = attribution.shapley[f]
        shown = f"{e.value:+.2f} ({e.low:+.2f} to {e.high:+.2f})"
        study.findings.append(Finding(f"{f}, {t.name}", shown, f"{t.name}: {f} {shown}.", e, listed=False))
    for f in controls:
        e = attribution.shapley[f]
        shown = f"{e.value:+.2f} ({e.low:+.2f} to {e.high:+.2f})"
        text = (
            f"{f} starts constant (negative control, {t.name}): exchanging its seed changed no bit of the weights, "
            "as expected."
        )
        study.findings.append(Finding(f"{f} (negative control), {t.name}", shown, text, e))


def _percents(e: Estimate, total: float) -> list[str]:
    low, high = sorted((e.low / total, e.high / total))
    return [f"{100 * low:.0f}", f"{100 * high:.0f}"]


def _tables(study: Layers, many: list[Result]) -> None:
    if many:
        rows = [
            {
                "recipient ← donor": r.transplant.name,
                "with the donor's weights": change_in_words(r.attribution.total, study.is_time),
                "of that change": ", ".join(
                    f"{f} {e.value / r.attribution.total.value:.0%}" for f, e in r.attribution.shapley.items()
                )
                if r.clear
                else None,
            }
            for r in many
        ]
        study.tables.append(Table("transplants", "Total of each transplant, and each layer's part", pd.DataFrame(rows)))
    if len(study.pooled):
        scale = "log time" if study.is_time else "log odds of a right answer"
        caption = f"Mean over transplants: what the better weights are worth, by layer ({scale})"
        study.tables.append(Table("pooled", caption, study.pooled.round(2)))
    caption = "Shapley shares and main effects by transplant and layer (changes of the outcome)"
    study.tables.append(Table("shares", caption, study.shares.round(4)))
    if len(study.interactions):
        by_size = study.interactions["interaction"].abs().sort_values(ascending=False).index
        table = study.interactions.reindex(by_size)
        study.tables.append(Table("interactions", "Two-way interactions", table.round(4), open=False))


QUESTION = Question(
    "layers",
    "Which layers?",
    "Which layers' initial weights carry a seed's speed?",
    "grok layers --recipient 0 --donor 1",
    analyse,
    lambda observations: bool(observations.once(transplants)),
    reads_designs=True,
)
