"""The transplants of a store: one recipient, one donor, and their runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pandas as pd

from analysis.observations import Observations, in_words, seed_names, varying_columns
from analysis.purposes import places, roles
from grok.streams import derive_seed

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
    masters = {derive_seed(m, "init"): f"seed {m}" for unit in cells["unit"] for m in _masters(unit)}
    names = {stream: seed_names(observations.arithmetic, stream) for stream in ("init", *STREAMS)}
    names["init"] = masters | names["init"]
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
        words = {s: _stream(names, s, seed) for s, seed in factors}
        columns, design = _design(maps, exchanged, list(words))
        differing = ", ".join(f"{c.removeprefix('config.')}={in_words(every.iloc[0][c])}" for c in settings)
        who = _seed(names, "init", init), _seed(names, "init", donor)
        result.append(Transplant(*who, columns, every, design, differing, words))
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
        designs.setdefault(key, {})[run] = _streams(unit)
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


def _masters(unit: Mapping[str, Any]) -> list[int]:
    return [seed for seed in (unit.get("recipient"), unit.get("donor")) if isinstance(seed, int)]


def _streams(unit: Mapping[str, Any]) -> frozenset[str]:
    """Return the streams that a cell has from the donor."""
    return frozenset(STREAMS) & frozenset(map(str, [*unit.get("exchanged", ()), *unit.get("streams", ())]))


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


def _stream(names: Mapping[str, Mapping[int, str]], stream: str, seed: int) -> str:
    master = names[stream].get(seed)
    return f"{stream} of {master}" if master else f"{stream} seed {seed}"


def _seed(names: Mapping[str, Mapping[int, str]], stream: str, seed: int) -> str:
    return names[stream].get(seed, f"{stream} seed {seed}")
