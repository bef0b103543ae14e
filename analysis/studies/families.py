"""Families of runs that differ in one setting only, except seeds."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.observations import (
    CONDITION_SETTINGS,
    Observations,
    default_settings,
    in_words,
    varying_columns,
)
from analysis.own_versions import OWN_CODE
from analysis.purposes import SEEDS, asked, extended

MOST = 6
"""Largest number of families of one setting; the largest are kept."""
FEWEST = 5
"""Smallest number of runs of a value."""
WEIGHT_DECAY = "optim.weight_decay"
COUPLING = "eval.couple_order"
"""A setting with its own section."""


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
        base = rows.groupby(others, dropna=False, sort=True).ngroup() if others else pd.Series(0, index=rows.index)
        # Compute the sizes first: a store can have hundreds of families of one value.
        value = rows[column].map(in_words, na_action=None)
        sizes = rows.groupby([base, value]).size()
        sizes = sizes[sizes >= FEWEST]
        total = sizes.groupby(level=0).agg(["size", "sum"])
        total = total[total["size"] >= 2].sort_values("sum", ascending=False, kind="stable")
        largest = list(total.index[:MOST])
        firsts = rows.loc[[rows.index[base == one][0] for one in largest]]
        differing = [c for c in others if firsts[c].nunique(dropna=False) > 1]
        for one, (_, first) in zip(largest, firsts.iterrows(), strict=True):
            values = [str(v) for v in sizes[sizes.index.get_level_values(0) == one].index.get_level_values(1)]
            groups = {v: rows[(base == one) & (value == v)] for v in _in_order(rows[column], values)}
            default = in_words(default_settings()[setting])
            sizes_of = {value: len(runs) for value, runs in groups.items()}
            references = [v for v in groups if v == default]
            references += sorted((v for v in groups if v != default), key=sizes_of.__getitem__, reverse=True)
            at = ", ".join(f"{c.removeprefix('config.')}={in_words(first[c])}" for c in differing)
            for reference in references:
                matched = _matched({reference: groups[reference], **groups})
                if len(matched) > 1:
                    apart = tuple(v for v in groups if v not in matched)
                    longer = {value: extended(observations, runs) for value, runs in matched.items()}
                    result.append(Family(setting, longer, at, apart))
                    break
    return result


def _in_order(column: pd.Series, wanted: list[str]) -> list[str]:
    """Return the texts of ``wanted`` in the order of the values (numbers as numbers), null last."""
    return [t for t in dict.fromkeys(map(in_words, column.sort_values(na_position="last"))) if t in wanted]


def _matched(groups: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the groups with only the seeds that the reference has, too, if enough of them remain.

    A group of other seeds is left out if it holds other streams fixed than the reference.
    """
    (reference, base), *others = groups.items()
    theirs = set(triples(base))
    kept = {value: rows[[t in theirs for t in triples(rows)]] for value, rows in others}
    others = [
        (value, kept[value] if len(kept[value]) >= FEWEST else rows)
        for value, rows in others
        if len(kept[value]) >= FEWEST or _held(rows) == _held(base)
    ]
    shared = set().union(*(set(triples(rows)) for _, rows in others))
    mine = base[[t in shared for t in triples(base)]]
    return {reference: mine if len(mine) >= FEWEST else base, **dict(others)}


def _held(rows: pd.DataFrame) -> dict[str, int]:
    """Return the streams that all runs hold at one seed."""
    return {stream: int(rows[stream].iloc[0]) for stream in SEEDS if rows[stream].nunique() == 1}


def triples(rows: pd.DataFrame) -> list[tuple[int, ...]]:
    """Return each run's (split, init, order) seeds."""
    return list(rows[SEEDS].itertuples(index=False, name=None))


OTHERS = tuple(s for s in CONDITION_SETTINGS if s not in (WEIGHT_DECAY, COUPLING, OWN_CODE))


def decay_families(observations: Observations) -> list[Family]:
    """Return the family of weight decays."""
    return families(observations, (WEIGHT_DECAY,))


def other_families(observations: Observations) -> list[Family]:
    """Return the families of all other settings."""
    return families(observations, OTHERS)
