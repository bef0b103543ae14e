"""Searches over settings: the best setting, and the comparison with the default.

Reads the journals that ``grok search`` writes into the store's ``search/``: the trials, and the pinned comparison on
new seeds.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grok.analysis.observations import Observations
from grok.analysis.statistics.estimate import Estimate, NotEnoughData
from grok.analysis.statistics.prediction import median_interval
from grok.analysis.statistics.proportions import Paired, paired, share
from grok.analysis.studies.base import Question, Study, Table

Floats = NDArray[np.float64]

FINISHED: Final = "complete"
TOP: Final = 10
"""Number of rows of the table of trials."""
VERY_LATE: Final = 1e12
"""A number of steps beyond any budget: what depends on it depends on the number that late seeds were given."""


@dataclass
class SearchResult:
    """One search with its trials as a table: number, value, best, state, one column per setting."""

    name: str
    objective: str
    minimise: bool
    second: str | None
    """The second objective of a Pareto search."""
    settings: list[str]
    trials: pd.DataFrame
    default: dict[str, Any]
    steps: int | None = None
    """Largest number of steps of a trial's runs."""
    compared: pd.DataFrame = field(default_factory=pd.DataFrame)
    """Columns seed, default, best: the outcomes of the pinned comparison by seed."""
    budget: float = math.inf
    """Steps of the comparison's runs; a larger time means that the seed did not generalise."""


@dataclass(kw_only=True)
class Searches(Study):
    """Every search of the store."""

    results: list[SearchResult]


def result_of(data: dict[str, Any]) -> SearchResult:
    """Return a search from its record."""
    objectives = data["objectives"]
    settings = sorted({name for trial in data["trials"] for name in trial["params"]})
    records = []
    for trial in data["trials"]:
        values = trial["values"] or []
        numbers = [math.nan if v is None else float(v) for v in values]
        records.append(
            {
                "trial": trial["number"],
                "state": trial["state"],
                "value": numbers[0] if numbers else math.nan,
                "second": numbers[1] if len(numbers) > 1 else math.nan,
                **_interval(objectives[0]["name"], [float(run[2]) for run in trial["runs"] if numbers]),
                "seeds": len(trial["runs"]),
                "best": bool(trial["best"]),
                **{name: trial["params"].get(name) for name in settings},
            }
        )
    return SearchResult(
        re.sub(r"[^\w.-]", "_", str(data["name"])),  # used in file names
        objectives[0]["name"],
        objectives[0]["direction"] == "minimize",
        objectives[1]["name"] if len(objectives) > 1 else None,
        settings,
        pd.DataFrame(records),
        data["default"],
        data["definition"].get("settings", {}).get("train.steps"),
    )


def _interval(objective: str, scores: list[float]) -> dict[str, float]:
    """Return the 95% interval of a setting's objective over its seeds."""
    if not scores:
        return {"low": math.nan, "high": math.nan}
    e = _over_seeds(objective, np.array(scores))
    return {"low": e.low, "high": e.high}


def _over_seeds(objective: str, scores: Floats) -> Estimate:
    return share(int(scores.sum()), len(scores)) if objective.endswith("_share") else median_interval(scores)


def analyse(observations: Observations) -> Searches:
    """Return the answer for every search with a finished trial.

    Raises:
        NotEnoughData: there is none.
    """
    every = [(result_of(data), data["pinned"], data["compared"]) for data in observations.searches]
    every = [of for of in every if len(of[0].trials) and (of[0].trials["state"] == FINISHED).any()]
    if not every:
        raise NotEnoughData("a search with a finished trial")
    study = Searches(results=[result for result, _, _ in every])
    for result, pinned, compared in every:
        _best(study, result)
        if pinned is not None and pinned["best"] == pinned["default"]:
            study.notes.append(f"{result.name}: the best setting is the default (trial {pinned['trial']}).")
        elif pinned is None or compared is None:
            study.notes.append(
                f"{result.name}: better than the default beyond seed noise? Not enough data: needs both settings on "
                f"fresh seeds (grok search study={result.name} study.compare=32)."
            )
        else:
            _comparison(study, result, pinned, compared)
    return study


def _best(study: Searches, result: SearchResult) -> None:
    done = result.trials[(result.trials["state"] == FINISHED) & result.trials["value"].notna()]
    if done.empty:
        study.notes.append(f"{result.name}: no finished trial has a finite value.")
        return
    ranked = done.sort_values(["value", "trial"], ascending=[result.minimise, True])
    best = ranked.iloc[0]
    if result.objective == "median_time" and result.steps is not None and best["value"] > result.steps:
        study.notes.append(
            f"{result.name}: under every setting fewer than half of the seeds generalised within {result.steps:,} "
            "steps. Larger values are counts of late seeds, not times. Longer runs (train.steps) give times."
        )
    setting = ", ".join(f"{s}={_short(best[s])}" for s in result.settings)
    pruned = len(result.trials) - len(done)
    study.tell(
        f"{result.name}: best {result.objective}",
        _short(best["value"]),
        f"{result.name}: the best of {len(done)} finished trials ({pruned} others) is trial {best['trial']} with "
        f"{result.objective} {_short(best['value'])} ({_short(best['low'])} to {_short(best['high'])}) over "
        f"{best['seeds']} seeds ({setting}). It was chosen as the best on these seeds, so this number is too "
        "optimistic.",
        Estimate(float(best["value"]), float(best["low"]), float(best["high"]), int(best["seeds"]), "over seeds"),
        headline=True,
    )
    columns = ["trial", "value", "low", "high"]
    frame = ranked.head(TOP)[[*columns, *(["second"] if result.second else []), "seeds", *result.settings]]
    frame = frame.rename(columns={"value": result.objective, "second": result.second or "second"})
    study.tabulate(f"trials_{result.name}", f"Best trials of {result.name}, 95% intervals over seeds", frame)


def _comparison(
    study: Searches, result: SearchResult, pinned: dict[str, Any], compared: dict[str, list[list[Any]]]
) -> None:
    runs = {side: {int(seed): float(score) for seed, _, score in compared[side]} for side in ("default", "best")}
    seeds = sorted(set(runs["default"]) & set(runs["best"]))
    a, b = (np.array([runs[side][s] for s in seeds]) for side in ("default", "best"))
    result.compared = pd.DataFrame({"seed": seeds, "default": a, "best": b})
    result.budget = float(pinned["steps"])
    study.tables.append(_sides(result, pinned, {"default": a, "best": b}))
    try:
        tested, shown = _paired(result, a, b)
    except NotEnoughData as gap:
        study.notes.append(f"{result.name}: best against default: not enough data, needs {gap.needs}.")
        return
    better, worse = (tested.lower, tested.higher) if result.minimise else (tested.higher, tested.lower)
    e = tested.shift
    good = tested.up is not result.minimise
    verdict = (
        "no difference beyond seed noise"
        if tested.p >= 0.05
        else "better than the default"
        if good
        else "worse than it"
    )
    study.tell(
        f"{result.name}: best against default",
        f"{shown} ({_ends(e)})",
        f"{result.name}, trial {pinned['trial']} against the default on {len(seeds)} new seeds, both "
        f"fixed in advance: {result.objective} shifts by {shown} ({_ends(e)}; {e.method}), better "
        f"for {better} seeds, worse for {worse}; Wilcoxon p = {tested.p:.2g}: {verdict}." + _censored(result, a, b),
        e,
        headline=True,
    )


def _late(result: SearchResult, scores: Floats) -> NDArray[np.bool_]:
    """Return which scores say only that the seed did not generalise within the budget."""
    return (scores > result.budget) & (result.objective == "median_time")


def _paired(result: SearchResult, default: Floats, best: Floats) -> tuple[Paired, str]:
    """Return the paired comparison and its shift in words; late seeds count as later than every step.

    Each number lies between the one with late seeds at the budget and the one with them later than every step: the
    interval has both, and an end is infinite where that is all that is known.

    Raises:
        NotEnoughData: as :func:`paired`.
    """
    late_a, late_b = _late(result, default), _late(result, best)
    near, far = (
        paired(np.where(late_a, code, default), np.where(late_b, code, best)) for code in (result.budget, VERY_LATE)
    )
    value, low, high = (
        math.copysign(math.inf, end) if abs(end) > VERY_LATE / 4 else end
        for end in (
            far.shift.value,
            min(near.shift.low, far.shift.low),
            max(near.shift.high, far.shift.high),
        )
    )
    shown = f"{value:+.4g}" if math.isfinite(value) else _open(near.shift.value, value)
    return replace(far, shift=replace(far.shift, value=value, low=low, high=high)), shown


def _open(bound: float, side: float) -> str:
    return f"{bound:+.4g} and {'above' if side > 0 else 'below'}"


def _ends(e: Estimate) -> str:
    """Return ``"-325 to +462"``, ``"-325 and above"`` or ``"+462 and below"``."""
    if math.isfinite(e.low):
        return f"{e.low:+.4g} to {e.high:+.4g}" if math.isfinite(e.high) else _open(e.low, e.high)
    return _open(e.high, e.low) if math.isfinite(e.high) else "any shift"


def _sides(result: SearchResult, pinned: dict[str, Any], scores: dict[str, Floats]) -> Table:
    """Return both settings with their values on the new seeds and in the search."""
    rows = []
    for side, values in scores.items():
        e = _over_seeds(result.objective, np.where(_late(result, values), math.inf, values))
        trial = result.trials["trial"] == (pinned["trial"] if side == "best" else _trial_of(result, pinned[side]))
        searched = result.trials.loc[trial, "value"]
        rows.append(
            {
                "setting": side,
                **pinned[side],
                f"{result.objective} on fresh seeds": e.value,
                "low": e.low,
                "high": e.high,
                "seeds": e.n,
                "in the search": float(searched.iloc[0]) if len(searched) else math.nan,
            }
        )
    caption = (
        f"{result.name}: both settings of the comparison with 95% intervals over the new seeds, and their values on "
        "the search's seeds, which are too optimistic for the chosen setting"
    )
    if any(_late(result, values).any() for values in scores.values()):
        caption += f" (inf: after step {result.budget:,.0f})"
    return Table(f"comparison_{result.name}", caption, pd.DataFrame(rows))


def _trial_of(result: SearchResult, setting: dict[str, Any]) -> int:
    """Return the number of the first trial with this setting; -1 if there is none."""
    same = [all(row[name] == value for name, value in setting.items()) for _, row in result.trials.iterrows()]
    return int(result.trials["trial"][same].min()) if any(same) else -1


def _censored(result: SearchResult, default: Floats, best: Floats) -> str:
    """Return a sentence about seeds that did not generalise within the budget; empty if all did."""
    late = [int(_late(result, side).sum()) for side in (default, best)]
    if not any(late):
        return ""
    return (
        f" {late[0]} seeds of the default and {late[1]} of the best did not generalise within {result.budget:,.0f} "
        "steps and count as later than every step."
    )


def _short(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return str(value)
    number = float(value)
    return f"{number:,.0f}" if abs(number) >= 1000 or number.is_integer() else f"{number:.3g}"


QUESTION = Question(
    "search",
    "Search over settings",
    "Which settings generalise soonest, and is the best one better than the default beyond seed noise?",
    "grok search study=quickstart",
    analyse,
    lambda observations: bool(observations.searches),
    any_task=False,
)
