"""Searches over settings: the trials, from the journals that ``grok search`` writes into the store's ``search/``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grok.analysis.observations import Observations, how_many
from grok.analysis.proposals import confirmation
from grok.analysis.statistics.estimate import FEWEST_OF_A_MEDIAN, Estimate, NotEnoughData, median_interval
from grok.analysis.statistics.proportions import share
from grok.analysis.studies.base import Question, Study

Floats = NDArray[np.float64]

FINISHED: Final = "complete"
TOP: Final = 10
"""Number of rows of the table of trials."""


@dataclass
class SearchResult:
    """One search with its trials as a table: number, value, state, one column per setting."""

    name: str
    objective: str
    minimise: bool
    settings: list[str]
    trials: pd.DataFrame
    steps: int | None = None
    """Largest number of steps of a trial's runs."""

    def ends(self, seeds: int) -> str:
        """Return what ``low`` and ``high`` of a trial with so many seeds are, in words."""
        few = seeds < FEWEST_OF_A_MEDIAN and not self.objective.endswith("_share")
        return "range over its few seeds" if few else "95% interval"


@dataclass(kw_only=True)
class Searches(Study):
    """Every search of the store."""

    results: list[SearchResult]


def result_of(data: dict[str, Any]) -> SearchResult:
    """Return a search from its record."""
    settings = sorted({name for trial in data["trials"] for name in trial["params"]})
    records = [
        {
            "trial": trial["number"],
            "state": trial["state"],
            "value": math.nan if trial["value"] is None else float(trial["value"]),
            **_interval(data["objective"], [float(run[2]) for run in trial["runs"] if trial["state"] == FINISHED]),
            "seeds": len(trial["runs"]),
            **{name: trial["params"].get(name) for name in settings},
        }
        for trial in data["trials"]
    ]
    return SearchResult(
        re.sub(r"[^\w.-]", "_", str(data["name"])),  # used in file names
        data["objective"],
        data["direction"] == "minimize",
        settings,
        pd.DataFrame(records),
        data["definition"].get("settings", {}).get("train.steps"),
    )


def _interval(objective: str, scores: list[float]) -> dict[str, float]:
    """Return the 95% interval of a setting's objective over its seeds; of few seeds' median their range."""
    if not scores:
        return {"low": math.nan, "high": math.nan}
    e = share(int(sum(scores)), len(scores)) if objective.endswith("_share") else median_interval(np.array(scores))
    return {"low": e.low, "high": e.high}


def analyse(observations: Observations) -> Searches:
    """Return the answer for every search with a finished trial.

    Raises:
        NotEnoughData: there is none.
    """
    searches = [data for data in observations.searches if any(t["state"] == FINISHED for t in data["trials"])]
    if not searches:
        raise NotEnoughData("a search with a finished trial")
    results = [result_of(data) for data in searches]
    study = Searches(results=results)
    for result, data in zip(results, searches, strict=True):
        _best(study, result)
        if commands := confirmation(data, observations):
            caption = f"{result.name}: is the best better than the default? Both on seeds that no trial had, compared"
            study.tabulate(f"confirm_{result.name}", caption, {"command": commands}, code=("command",))
        else:
            study.notes.append(f"{result.name}: the best finished setting is the default, or its runs are gone.")
    return study


def _best(study: Searches, result: SearchResult) -> None:
    done = result.trials[(result.trials["state"] == FINISHED) & result.trials["value"].notna()]
    if done.empty:
        study.notes.append(f"{result.name}: no finished trial has a finite value.")
        return
    ranked = done.sort_values(["value", "trial"], ascending=[result.minimise, True])
    best = ranked.iloc[0]
    late = result.steps if result.objective == "median_time" else None
    value, low, high = (
        f"above {late:,}" if late is not None and best[name] > late else _short(best[name])
        for name in ("value", "low", "high")
    )
    if late is not None and best["value"] > late:
        study.notes.append(
            f"{result.name}: under every setting fewer than half of the seeds generalised within {late:,} "
            "steps. Larger values are counts of late seeds, not times. Longer runs (train.steps) give times."
        )
    setting = ", ".join(f"{s}={_short(best[s])}" for s in result.settings)
    ties = int((done["value"] == best["value"]).sum()) - 1
    n = int(best["seeds"])
    alike = f", as good as {ties} others," * (ties > 0)
    pruned = len(result.trials) - len(done)
    study.tell(
        f"{result.name}: best {result.objective}",
        value,
        f"{result.name}: the best of {len(done)} finished trials ({pruned} others) is trial {best['trial']}{alike} "
        f"with {result.objective} {value} ({result.ends(n)}: {low} to {high}) over {how_many(n, 'seed')} "
        f"({setting})."
        + " It was chosen as the best on these seeds, so this number is too optimistic."
        * (ties + 1 < len(done)),
        Estimate(float(best["value"]), float(best["low"]), float(best["high"]), int(best["seeds"]), "over seeds"),
        headline=True,
    )
    columns = ["trial", "value", "low", "high"]
    frame = ranked.head(TOP)[[*columns, "seeds", *result.settings]]
    if late is not None:  # a count of late seeds, no time
        frame = frame.assign(**{c: frame[c].map(lambda x: f"above {late:,}" if x > late else x) for c in columns[1:]})
    frame = frame.rename(columns={"value": result.objective})
    study.tabulate(f"trials_{result.name}", f"Best trials of {result.name}; low and high: {result.ends(n)}", frame)


def _short(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return str(value)
    number = float(value)
    return f"{number:,.0f}" if abs(number) >= 1000 or number.is_integer() else f"{number:.3g}"


QUESTION = Question(
    "search",
    "Search over settings",
    "Which settings generalise soonest?",
    "grok search study=quickstart",
    analyse,
    lambda observations: bool(observations.searches),
)
