"""Families of runs: those that differ in one setting only, seeds aside."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.observations import CONDITION_SETTINGS, Observations, as_text, default_settings, varying_columns

MOST = 6
"""Families of one setting that are compared, the largest ones."""
FEWEST = 5
"""Runs of a value below which it is not compared."""
WEIGHT_DECAY = "optim.weight_decay"
COUPLING = "eval.couple_order"
"""Has a section of its own."""
SEEDS = ["seed_split", "seed_init", "seed_order"]


@dataclass(frozen=True)
class Family:
    """Runs that differ in ``setting`` alone, by its value (as text); the reference first."""

    setting: str
    groups: dict[str, pd.DataFrame]
    at: str = ""
    """Values of the other settings that vary in the store, where the setting has several families."""

    @property
    def title(self) -> str:
        """The setting, and at which other values it was varied where that tells it from another family."""
        return f"{self.setting} at {self.at}" if self.at else self.setting

    @property
    def reference(self) -> str:
        """The value that the others are compared with."""
        return next(iter(self.groups))


def families(observations: Observations, settings: tuple[str, ...]) -> list[Family]:
    """Return the families of each setting that takes at least two values in them, the largest first.

    Where another setting varies as well, each of its values is a family of its own.
    """
    rows = observations.arithmetic
    rows = rows[(rows["layers"] == "{}") & (rows["config.perturb.ulps"].fillna(0) == 0)] if len(rows) else rows
    columns = varying_columns(rows) if len(rows) else []
    result = []
    for setting in settings:
        column = f"config.{setting}"
        if column not in columns:
            continue
        others = [c for c in columns if c != column]
        base = rows.groupby(others, dropna=False, sort=True).ngroup() if others else pd.Series(0, index=rows.index)
        # Sizes first: hundreds of families of one value each would otherwise be cut out for nothing.
        value = rows[column].map(as_text, na_action=None)
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
            default = as_text(default_settings()[setting])
            most = {value: len(runs) for value, runs in groups.items()}
            reference = default if default in groups else max(most, key=most.__getitem__)
            at = ", ".join(f"{c.removeprefix('config.')}={as_text(first[c])}" for c in differing)
            result.append(Family(setting, _matched({reference: groups[reference], **groups}), at))
    return result


def _in_order(column: pd.Series, wanted: list[str]) -> list[str]:
    """Return the texts of ``wanted`` in the order of the values (numbers as numbers), null last."""
    return [t for t in dict.fromkeys(map(as_text, column.sort_values(na_position="last"))) if t in wanted]


def _matched(groups: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Keep of each value only the seeds that the reference was run with too, where that leaves enough of them."""
    (reference, base), *others = groups.items()
    theirs = set(triples(base))
    kept = {value: rows[[t in theirs for t in triples(rows)]] for value, rows in others}
    others = [(value, kept[value] if len(kept[value]) >= FEWEST else rows) for value, rows in others]
    shared = set().union(*(set(triples(rows)) for _, rows in others))
    mine = base[[t in shared for t in triples(base)]]
    return {reference: mine if len(mine) >= FEWEST else base, **dict(others)}


def triples(rows: pd.DataFrame) -> list[tuple[int, ...]]:
    return list(rows[SEEDS].itertuples(index=False, name=None))


OTHERS = tuple(s for s in CONDITION_SETTINGS if s not in (WEIGHT_DECAY, COUPLING))


def decay_families(observations: Observations) -> list[Family]:
    """Return the family of weight decays."""
    return families(observations, (WEIGHT_DECAY,))


def other_families(observations: Observations) -> list[Family]:
    """Return the families of all other settings."""
    return families(observations, OTHERS)
