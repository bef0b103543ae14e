"""Which runs the store's sweeps chose because of their results, by the sweeps' records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, Final

import pandas as pd

from analysis.observations import Observations, is_random_seed
from analysis.records import BRANCH, LAYERS, REPEAT, options_of, planned, standing
from grok.streams import ALL_REDRAWS, drawn_parents, redrawn_seeds

MOST_CHILDREN: Final = 100
"""Largest number of children for which the seeds of a child are compared with those of its parent's children."""


@dataclass(frozen=True)
class Choice:
    """How one recorded sweep chose its parents."""

    planned: set[str]
    """The runs that it planned, as far as the record names them: see :mod:`grok.execute.record`."""
    kinds: dict[str, str]
    """``best`` or ``named``, by parent. Parents that are missing were drawn."""
    drawn: set[str] = field(default_factory=set)
    """The random parents, as far as they follow from the command; empty for named parents."""
    redraws: tuple[str, ...] = ()
    """The sets of redrawn streams as typed, for example ``split+init``; empty for named parents, and where the command
    may have chosen among other seeds than the store has now."""
    times: int = 0
    """Children of each parent and set."""

    def covers(self, child: Mapping[Any, Any], parent: str, trajectory: str, redrawn: tuple[str, ...]) -> bool:
        """Return whether the command asks for this child of its own parent, also if another command trained it.

        ``trajectory``: the parent's ``trajectory_id``.
        """
        if parent not in self.drawn and parent not in self.kinds:
            return False
        words = [word for word in self.redraws if set(word.split("+")) == set(redrawn)]
        return follows(child, trajectory, words, self.times)


def follows(child: Mapping[Any, Any] | pd.Series, trajectory: str, redraws: list[str], times: int) -> bool:
    """Return whether the child's new seeds are among those that follow from the parent's ``trajectory``.

    ``redraws``: streams joined by ``+``, in the order in which a command may have named them.
    """
    return any(
        all(int(child[f"seed_{stream}"]) == seed for stream, seed in redrawn_seeds(trajectory, words, count).items())
        for words in redraws
        for count in range(times)
    )


def orders(redrawn: tuple[str, ...]) -> list[str]:
    """Return the ways to type a set of redrawn streams.

    >>> orders(("split", "init"))
    ['split+init', 'init+split']
    """
    return ["+".join(order) for order in permutations(redrawn)]


def choices(observations: Observations, rows: pd.DataFrame) -> list[Choice]:
    """Return how the store's sweeps chose the parents of one condition, by their records.

    The choice of ``--best N --at STEP`` is repeated from the curves. Sweeps whose children are of another
    condition are ignored.
    """
    chosen: list[Choice] = []
    random = rows[is_random_seed(rows)] if len(rows) else rows
    stands = standing(observations, rows.index)
    for sweep in observations.sweeps:
        words = [str(word) for word in sweep.get("argv", [])]
        if BRANCH not in words:
            continue
        children = planned(sweep)
        here = {stands[run] for run in children if run in stands}
        if children and not here:
            continue
        options = options_of(words)
        numbers = [*options.get("--seeds", "0:0").split(":")]
        numbers += [options.get(name, "0") for name in ("--at", "--best", "--random", "--times")]
        if not all(number.isascii() and number.isdigit() and len(number) < 19 for number in numbers):
            continue  # not a command of this project: a store may come from anybody
        if "--parents" in options:
            names = tuple(options["--parents"].split(","))
            parents = {run for recorded, run in stands.items() if recorded.startswith(names)}
            chosen.append(Choice(here, dict.fromkeys(sorted(parents), "named")))
            continue
        among, whole = random, False
        if "--seeds" in options:
            first, _, end = options["--seeds"].partition(":")
            among = random[random["seed"].between(int(first), int(end) - 1)]
            whole = 0 < len(among) == int(end) - int(first)
        among = among.sort_values("seed")
        curves = observations.curves_of(list(among.index))
        at = curves[curves["step"] == int(options.get("--at", 1500))].set_index("run_id")["val_loss"]
        losses = at.reindex(among.index)
        best = losses.sort_values(kind="stable").index[: int(options.get("--best", 2))]
        kinds = {str(run): "best" for run in best}
        drawn: set[str] = set()
        if whole:  # without --seeds, or with one that is missing now, nobody knows the candidates of that time
            others = among.index.difference(best, sort=False)
            places = drawn_parents(int(among["seed"].iloc[0]), len(others), int(options.get("--random", 2)))
            drawn = set(map(str, others[places]))
        redraws = tuple(options.get("--redraw", ALL_REDRAWS).split(",")) if whole else ()
        chosen.append(Choice(here, kinds, drawn, redraws, min(MOST_CHILDREN, int(options.get("--times", 4)))))
    return chosen


def chosen(observations: Observations, rows: pd.DataFrame) -> set[str]:
    """Return the runs among ``rows``, of one condition, that a command chose for their results or by name.

    These are parents of ``grok branch`` and candidates of ``grok repeat``, without the parents and controls that were
    drawn at random, and recipients of ``grok layers``, which are all given by name.
    """
    parents = {run for choice in choices(observations, rows) for run in choice.kinds}
    random = rows[is_random_seed(rows)] if len(rows) else rows
    master = observations.all_runs.set_index("run_id")["seed"]
    repeated: set[str] = set()
    for sweep in observations.sweeps:
        words = [str(word) for word in sweep.get("argv", [])]
        if REPEAT in words:
            seeds = master.reindex(sorted(planned(sweep))).dropna()
            repeated |= _candidates(options_of(words), random[random["seed"].isin(seeds)])
        if LAYERS in words:
            options = options_of(words)
            typed = {options.get("--recipient"), options.get("--donor") if "--both" in words else None}
            repeated |= set(map(str, random.index[random["seed"].astype(str).isin(typed - {None})]))
    return parents | repeated


def _candidates(options: Mapping[str, str], rows: pd.DataFrame) -> set[str]:
    """Return the candidates among the ``rows`` that one ``grok repeat`` with these options repeated."""
    if "--seeds" in options:
        names = options["--seeds"].split(",")
        runs = tuple(name for name in names if not name.isdigit())
        seeds = map(str, rows["seed"])
        return {str(run) for run, seed in zip(rows.index, seeds, strict=True) if seed in names or run.startswith(runs)}
    try:
        if "--above" in options:
            return set(map(str, rows.index[rows["val_acc"] > float(options["--above"])]))
        best = int(options.get("--best", 12))
    except ValueError:  # not a command of this project: a store may come from anybody
        return set()
    by = ["grokked_step", "val_acc", "val_loss"]
    ranked = rows.rename_axis("run").reset_index().sort_values([*by, "run"], ascending=[True, False, True, True])
    return set(map(str, ranked["run"].head(best)))
