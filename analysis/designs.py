"""The choices of a proposed design command that depend on the store: which seeds, how many, at which step.

``sweeps.layers``, ``sweeps.branch`` and ``sweeps.repeat`` start from stored runs. A proposal names runs of
the store. If the store has no suitable runs, the proposal is a census, which trains them. The size of a
proposed census fits the store, because the named census has as many seeds as the diary's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pandas as pd

from analysis.observations import Observations, as_text, differing_settings, floats
from analysis.populations import populations
from analysis.purposes import STREAMS, asked, random_seeds
from analysis.setup_files import setup_file
from grok.streams import derive_seed

CENSUS: Final = ("grok", "sweep", "seed=range(0,64)")
SIZES: Final = (64, 128, 256, 512, 1024)
"""Seeds of a proposed census; more than the last are the named sweep's."""
SMALL_SEARCH: Final = ("study.trials=16", "study.seeds=4")
HALVING: Final = 4
"""Times as many seeds make an interval half as wide."""
MOST_CANDIDATES: Final = 12
MOST_PARENTS: Final = 2
FEWEST: Final = 4
"""Smallest number of runs to choose from."""


@dataclass(frozen=True)
class Proposed:
    """The words of a command, and what it copies from the runs of the store."""

    words: list[str]
    settings: bool
    """Whether to add the settings of the store's runs."""
    streams: bool = True
    """Whether to add the stream seeds that are fixed in every population of the store."""
    alone: Mapping[str, Any] = field(default_factory=dict)
    """Settings that select one condition among those of the store."""


def designed(words: list[str], observations: Observations, any_task: bool) -> Proposed:
    """Return the command ``words`` with the choices that depend on the store filled in."""
    name = words[1] if words[:1] == ["grok"] else ""
    if words[2:] == ["sweep=census"]:
        return Proposed(_census(words, observations), any_task)
    if name == "search":
        return _search(words, observations)
    if name == "layers":
        return Proposed(_transplant(words, observations), any_task)
    if name == "branch":
        options = _parents(observations)
        return Proposed(_with(words, options), any_task) if options else Proposed(list(CENSUS), True, streams=False)
    if name == "repeat":
        alone = _one_condition(observations)
        n = len(_repeatable(observations, alone))
        if n < FEWEST:
            return Proposed(list(CENSUS), True)
        return Proposed(_with(words, {"--best": str(min(MOST_CANDIDATES, n // 2))}), any_task, alone=alone)
    return Proposed(words, any_task)


def _census(words: list[str], observations: Observations) -> list[str]:
    """Return a census with a multiple of the seeds of the store's largest population; ``words`` if these are many."""
    largest = max((len(p) for p in observations.once(populations).every), default=0)
    wanted = HALVING * largest
    size = next((size for size in SIZES if size >= wanted), None)
    return words if size is None else [*words[:2], f"seed=range(0,{size})"]


def _search(words: list[str], observations: Observations) -> Proposed:
    """Return a search over the settings of the store's own set-up: small, unless it is the diary's regime.

    The quickstart's study starts from a set-up by name, the diary's from the default settings.
    """
    rows = observations.arithmetic
    if rows.empty:
        return Proposed(words, False)
    first = next((p.rows.iloc[0] for p in observations.once(populations).to_go_on), rows.iloc[0])
    if not differing_settings(first):
        return Proposed([*words[:2], "study=diary"], False)
    name = first.get("config.experiment")
    if isinstance(name, str) and setup_file("experiment", name) is not None:
        return Proposed([*words, *SMALL_SEARCH], True, streams=False)
    # the diary's pruner compares more seeds than a small search has
    small = [*SMALL_SEARCH, "study.pruner.name=none", "study.horizon=null"]
    return Proposed([*words[:2], "study=diary", *small], True, streams=False)


def _with(words: Sequence[str], options: dict[str, str]) -> list[str]:
    """Return ``words`` with these values of ``options``, replaced or added."""
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
    """Return ``words`` with the median seed of the store's first census as recipient and the best one as donor.

    Streams that are fixed in the census keep their seeds. Without a census, donor and recipient are init seeds of
    the first scan of init.
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
    """Return the number of parents, and the evaluation nearest to half of the steps; empty without a census."""
    reference = next(iter(observations.once(populations).to_go_on), None)
    if reference is None:
        return {}
    rows = reference.rows[(reference.rows["status"] == "completed") & (reference.varies == STREAMS)]
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


def _one_condition(observations: Observations) -> dict[str, Any]:
    """Return the settings that differ between populations, with the values of the first in which a seed generalised."""
    grouped = observations.once(populations)
    if not grouped.settings:
        return {}
    row = grouped.to_go_on[0].rows.iloc[0]
    return {name: row[f"config.{name}"] for name in grouped.settings}


def _repeatable(observations: Observations, alone: Mapping[str, Any]) -> pd.DataFrame:
    """Return the runs that ``sweeps.repeat`` may choose from: random seeds of one condition, else any asked for."""
    rows = observations.once(asked)
    for name, value in alone.items():
        rows = rows[rows[f"config.{name}"].map(as_text) == as_text(value)]
    plain = (rows["layers"] == "{}") & (rows["status"] == "completed")
    rows = rows[plain & ~rows["config.eval.couple_order"].fillna(False).astype(bool)]
    if rows.empty:
        return rows
    rows = rows[rows["config_id"] == rows["config_id"].value_counts().index[0]]
    random = rows[rows.index.isin(observations.once(random_seeds).index)]
    kept: pd.DataFrame = random if len(random) else rows
    return kept
