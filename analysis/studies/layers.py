"""Which layers' initial weights make a seed super? Layer transplants (REQUIREMENTS N8, C3)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from analysis.observations import Observations, describe_task, varying_columns
from analysis.statistics.estimate import LEVEL, Estimate, NotEnoughData
from analysis.statistics.shapley import Attribution, attribute
from analysis.studies.base import Finding, Question, Study, Table
from analysis.studies.outcomes import Outcome, outcome


@dataclass(frozen=True)
class Transplant:
    """One recipient, one donor, and every run in which some tensors of the recipient come from the donor."""

    recipient: int
    donor: int
    factors: list[str]
    rows: pd.DataFrame
    design: np.ndarray
    """(runs, factors), 1 where the factor comes from the donor."""


@dataclass(kw_only=True)
class Layers(Study):
    """Shapley shares of the layers, averaged over the transplants."""

    outcome: Outcome
    shares: pd.DataFrame
    """Per factor: share, low, high, control."""
    interactions: pd.DataFrame
    transplants: list[tuple[Transplant, Attribution]]


def transplants(observations: Observations) -> list[Transplant]:
    """Return every (recipient, donor) pair with runs, under equal settings, split and order."""
    rows = observations.arithmetic
    if rows.empty:
        return []
    maps = rows["layers"].map(json.loads)
    swapped = rows[maps.map(bool)]
    if swapped.empty:
        return []
    frame = ["seed_split", "seed_order", "seed_init", *varying_columns(rows)]
    plain = rows[~maps.map(bool)]
    found = []
    for key, group in swapped.groupby(frame, dropna=False, sort=True):
        same = plain
        for column, value in zip(frame, key, strict=True):
            same = same[same[column].isna()] if pd.isna([value])[0] else same[same[column] == value]
        for donor in sorted({seed for m in maps[group.index] for seed in m.values()}):
            mine = group[[set(m.values()) == {donor} for m in maps[group.index]]]
            factors = sorted({name for m in maps[mine.index] for name in m})
            every = pd.concat([same, mine])
            bits = np.array([[float(f in maps[run]) for f in factors] for run in every.index])
            found.append(Transplant(int(every["seed_init"].iloc[0]), int(donor), factors, every, bits))
    return found


def analyse(observations: Observations, question: Question) -> Layers:
    """Answer over all transplants that carry an estimate.

    Raises:
        NotEnoughData: none does.
    """
    done: list[tuple[Transplant, Attribution]] = []
    results: list[Outcome] = []
    gap: NotEnoughData | None = None
    for transplant in transplants(observations):
        try:
            result = outcome(observations, transplant.rows)
            done.append((transplant, attribute(transplant.design, result.values, transplant.factors, result.rounding)))
            results.append(result)
        except NotEnoughData as problem:
            gap = problem
    kinds = {(tuple(t.factors), r.is_time) for (t, _), r in zip(done, results, strict=True)}
    if not done:
        raise gap or NotEnoughData("runs with seeds.layers")
    common = max(
        kinds, key=lambda k: sum((tuple(t.factors), r.is_time) == k for (t, _), r in zip(done, results, strict=True))
    )
    chosen = [
        i for i, ((t, _), r) in enumerate(zip(done, results, strict=True)) if (tuple(t.factors), r.is_time) == common
    ]
    kept = [done[i] for i in chosen]
    first = results[chosen[0]]
    factors = list(common[0])
    control = {f: _identical(kept, f) for f in factors}
    records: list[dict[str, Any]] = []
    for f in factors:
        e = pooled([a.shapley[f] for _, a in kept])
        m = pooled([a.main[f] for _, a in kept])
        records.append(
            {
                "layer": f,
                "Shapley share": e.value,
                "low": e.low,
                "high": e.high,
                "main effect": m.value,
                "main low": m.low,
                "main high": m.high,
                "weights unchanged by the exchange": control[f],
            }
        )
    pairs = [
        {"layers": " × ".join(pair), "interaction": e.value, "low": e.low, "high": e.high}
        for pair in kept[0][1].interactions
        for e in [pooled([a.interactions[pair] for _, a in kept])]
    ]
    study = Layers(
        name=question.name,
        title=question.title,
        question=question.question,
        outcome=first,
        shares=pd.DataFrame(records),
        interactions=pd.DataFrame(pairs, columns=["layers", "interaction", "low", "high"]),
        transplants=kept,
    )
    _findings(study, pooled([a.total for _, a in kept]))
    return study


def pooled(estimates: list[Estimate], level: float = LEVEL) -> Estimate:
    """Return the mean over transplants, its interval from their own intervals.

    It speaks about the transplants that were run; with few of them it says nothing about
    other pairs of seeds.
    """
    if len(estimates) == 1:
        return estimates[0]
    value = float(np.mean([e.value for e in estimates]))
    z = float(special.ndtri(0.5 + level / 2))
    se = np.array([(e.high - e.low) / 2 / z for e in estimates])
    half = z * float(np.sqrt((se**2).sum())) / len(estimates)
    n = sum(e.n for e in estimates)
    return Estimate(value, value - half, value + half, n, f"mean over {len(estimates)} transplants", level)


def _identical(kept: list[tuple[Transplant, Attribution]], factor: str) -> bool | None:
    """Return whether exchanging ``factor`` alone never changed the final weights (None: no such pair of runs)."""
    seen = None
    for transplant, _ in kept:
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


def _findings(study: Layers, total: Estimate) -> None:
    unit = "of log time" if study.outcome.is_time else "of accuracy (negative: higher accuracy)"
    runs = sum(len(t.rows) for t, _ in study.transplants)
    first = study.transplants[0][0]
    study.notes.append(
        f"{len(study.transplants)} transplant(s), {runs} runs of {describe_task(first.rows.iloc[0])}. Outcome: "
        f"{study.outcome.name}; below zero means faster with the donor's weights."
    )
    sign = f"{total.value:+.2f} ({total.low:+.2f} to {total.high:+.2f})"
    factor = f", a factor of {np.exp(total.value):.2f} in steps" if study.outcome.is_time else ""
    study.findings.append(
        Finding("all layers exchanged", sign, f"Exchanging all layers changes {sign} {unit}{factor}.", total, True)
    )
    ranked = study.shares.reindex(study.shares["Shapley share"].abs().sort_values(ascending=False).index)
    for _, row in ranked.iterrows():
        e = Estimate(float(row["Shapley share"]), float(row["low"]), float(row["high"]), runs, "Shapley")
        text = f"{e.value:+.2f} ({e.low:+.2f} to {e.high:+.2f})"
        control = row["weights unchanged by the exchange"]
        if control is not None and bool(control):
            study.findings.append(
                Finding(
                    f"{row['layer']} (negative control)",
                    text,
                    f"{row['layer']} starts constant: exchanging its seed left every weight unchanged to the "
                    f"bit, as it must (share {text}).",
                    e,
                )
            )
            continue
        share = f", {e.value / total.value:.0%} of the whole" if total.low > 0 or total.high < 0 else ""
        study.findings.append(Finding(f"{row['layer']}", text, f"{row['layer']}: {text} {unit}{share}.", e))
    study.tables.append(Table("shares", "Shapley shares and main effects by layer", study.shares.round(4)))
    if len(study.interactions):
        table = study.interactions.reindex(study.interactions["interaction"].abs().sort_values(ascending=False).index)
        study.tables.append(Table("interactions", "Two-way interactions", table.round(4), open=False))
    if not all(a.full for _, a in study.transplants):
        study.notes.append("Fractional design: interactions of three and more layers are taken as none.")


QUESTION = Question(
    "layers",
    "Which layers?",
    "Which layers' initial weights carry a seed's speed?",
    "python -m sweeps.layers --recipient SEED --donor SEED",
    analyse,
    lambda observations: bool((observations.arithmetic["layers"] != "{}").any()),
)
