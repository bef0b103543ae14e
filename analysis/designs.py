"""What a proposed design command takes from a store: which seeds, how many, chosen at which step.

``sweeps.layers``, ``sweeps.branch`` and ``sweeps.repeat`` start from stored runs. A proposal names runs
that the store has; where it has none that would do, a census that makes them is proposed instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from analysis.observations import Observations, floats, is_random_seed
from analysis.populations import populations
from grok.streams import derive_seed

CENSUS: Final = ("grok", "sweep", "seed=range(0,64)")
MOST_CANDIDATES: Final = 12
MOST_PARENTS: Final = 2
FEWEST: Final = 4
"""Runs below which nothing is worth choosing among."""


@dataclass(frozen=True)
class Proposed:
    """A command's words, and what it takes over from the runs of the store."""

    words: list[str]
    settings: bool
    """The settings of the store's runs."""
    streams: bool = True
    """The streams that every population of the store holds."""


def designed(words: list[str], observations: Observations, any_task: bool) -> Proposed:
    """Return a command with the choices filled in that depend on the store."""
    name = words[1] if words[:1] == ["grok"] else ""
    if name == "layers":
        return Proposed(_transplant(words, observations), any_task)
    if name == "branch":
        options = _parents(observations)
        return Proposed(_with(words, options), any_task) if options else Proposed(list(CENSUS), True, streams=False)
    if name == "repeat":
        n = len(_repeatable(observations))
        if n < FEWEST:
            return Proposed(list(CENSUS), True)
        return Proposed(_with(words, {"--best": str(min(MOST_CANDIDATES, n // 2))}), any_task)
    return Proposed(words, any_task)


def _with(words: Sequence[str], options: dict[str, str]) -> list[str]:
    """Return ``words`` in which the values of ``options`` stand."""
    filled = list(words)
    for name, value in options.items():
        if name in filled:
            filled[filled.index(name) + 1] = value
        else:
            filled += [name, value]
    return filled


def _best_first(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.sort_values(["grokked_step", "val_acc"], ascending=[True, False], na_position="last", kind="stable")


def _transplant(words: Sequence[str], observations: Observations) -> list[str]:
    """Return ``words`` with an ordinary seed as recipient and the best one as donor, of the store's first census.

    The streams that the census holds stay at their seeds. Of a scan of init, where there is no census, the donor is
    an init seed and so is the recipient's.
    """
    every = [p for p in observations.once(populations).to_go_on if len(p) >= FEWEST]
    census = next((p for p in every if p.from_masters), next((p for p in every if p.varies == ("init",)), None))
    if census is None:
        return list(words)
    rows = _best_first(census.rows)
    master = int(rows["seed"].iloc[0])
    held = [
        f"seeds.{stream}={seed}"
        for stream, seed in census.fixed.items()
        if census.from_masters or seed != derive_seed(master, stream)
    ]
    seeds = census.seeds[rows.index].astype(int).tolist()
    ordinary, best = str(seeds[len(seeds) // 2]), str(seeds[0])
    if census.from_masters:
        return [*_with(words, {"--recipient": ordinary, "--donor": best}), *held]
    named = ["--donor-init" if word == "--donor" else word for word in words]
    options = {"--recipient": str(master), "--donor-init": best}
    return [*_with(named, options), f"seeds.init={ordinary}", *held]


def _parents(observations: Observations) -> dict[str, str]:
    """Return how many parents to take, and the evaluation nearest to half of the steps; empty without a census."""
    reference = next(iter(observations.once(populations).to_go_on), None)
    if reference is None:
        return {}
    rows = reference.rows[is_random_seed(reference.rows) & (reference.rows["status"] == "completed")]
    if len(rows) < FEWEST:
        return {}
    curves = observations.curves_of(rows.index)
    common = curves[curves["step"] > 0].groupby("step")["run_id"].nunique()
    steps = common.index[common == len(rows)].to_numpy(dtype=float)
    if not len(steps):
        return {}
    half = float(floats(rows["steps"]).min()) / 2
    number = str(min(MOST_PARENTS, len(rows) // 2))
    return {"--best": number, "--random": number, "--at": str(int(min(steps, key=lambda step: abs(step - half))))}


def _repeatable(observations: Observations) -> pd.DataFrame:
    """Return the runs that ``sweeps.repeat`` chooses among: of the most frequent condition, nothing perturbed."""
    rows = observations.arithmetic
    if rows.empty:
        return rows
    plain = (rows["config.perturb.ulps"].fillna(0) == 0) & (rows["layers"] == "{}") & (rows["status"] == "completed")
    rows = rows[plain & ~rows["config.eval.couple_order"].fillna(False).astype(bool)]
    if rows.empty:
        return rows
    rows = rows[rows["config_id"] == rows["config_id"].value_counts().index[0]]
    derived = is_random_seed(rows)
    kept: pd.DataFrame = rows[derived] if derived.any() else rows
    return kept
