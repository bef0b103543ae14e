"""The transplants of a store: one recipient, one donor, and their runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pandas as pd

from analysis.observations import Observations, in_words, seed_names, varying_columns
from analysis.purposes import roles
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
    one factor. The recipient's own runs are the cells with nothing exchanged, never the run for which it was chosen.
    """
    cells = observations.once(roles).of("cell", kinds=("layers",))
    rows = observations.measured(cells["run_id"])
    cells = cells[cells["run_id"].isin(rows.index)]
    if cells.empty:
        return []
    settings = varying_columns(rows)
    label = rows.groupby(settings, dropna=False).ngroup() if settings else pd.Series(0, index=rows.index)
    units = pd.DataFrame(
        {
            "run": cells["run_id"],
            "design": cells["design_id"],
            "setting": label[cells["run_id"]].to_numpy(),
            "recipient": [unit.get("recipient") for unit in cells["unit"]],
            "donor": [_donor(unit) for unit in cells["unit"]],
            "streams": [_streams(unit) for unit in cells["unit"]],
        }
    )
    masters = {derive_seed(m, "init"): f"seed {m}" for unit in cells["unit"] for m in _masters(unit)}
    names = {stream: seed_names(observations.arithmetic, stream) for stream in ("init", *STREAMS)}
    names["init"] = masters | names["init"]
    found: dict[tuple[Any, ...], dict[str, frozenset[str]]] = {}
    for (_, setting, _, donor), group in units.dropna(subset="donor").groupby(
        ["design", "setting", "recipient", "donor"], sort=True
    ):
        exchanged = dict(zip(group["run"], group["streams"], strict=True))
        own = _seeds(rows, [run for run, streams in exchanged.items() if not streams])
        theirs = _seeds(
            rows, [run for run, streams in exchanged.items() if streams == frozenset().union(*group["streams"])]
        )
        factors = tuple((s, theirs[s]) for s in STREAMS if any(s in streams for streams in exchanged.values()))
        key = (own["split"], own["order"], own["init"], int(setting), int(donor), factors)
        found.setdefault(key, {}).update(exchanged)
    result = []
    for (*_, init, _, donor, factors), exchanged in sorted(found.items(), key=lambda entry: entry[0]):
        every = rows.loc[list(exchanged)]
        maps = every["layers"].map(json.loads)
        if maps.map(bool).sum() < 2:
            continue
        words = {s: _stream(names, s, seed) for s, seed in factors}
        columns, design = _design(maps, exchanged, list(words))
        differing = ", ".join(f"{c.removeprefix('config.')}={in_words(every.iloc[0][c])}" for c in settings)
        who = _seed(names, "init", init), _seed(names, "init", donor)
        result.append(Transplant(*who, columns, every, design, differing, words))
    return result


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


def _seeds(rows: pd.DataFrame, runs: list[str]) -> dict[str, int]:
    return {stream: int(rows.at[runs[0], f"seed_{stream}"]) if runs else -1 for stream in ("init", *STREAMS)}


def _design(
    maps: pd.Series, exchanged: Mapping[str, frozenset[str]], streams: list[str]
) -> tuple[list[str], np.ndarray]:
    """Return the names of the factors, and the design (runs, factors)."""
    columns: dict[bytes, tuple[list[str], np.ndarray]] = {}
    for layer in sorted({name for layers in maps for name in layers}):
        bits = np.array([float(layer in layers) for layers in maps])
        columns.setdefault(bits.tobytes(), ([], bits))[0].append(layer)
    for stream in streams:
        columns[stream.encode()] = ([stream], np.array([float(stream in exchanged[run]) for run in maps.index]))
    return [" + ".join(names) for names, _ in columns.values()], np.column_stack([b for _, b in columns.values()])


def _stream(names: Mapping[str, Mapping[int, str]], stream: str, seed: int) -> str:
    master = names[stream].get(seed)
    return f"{stream} of {master}" if master else f"{stream} seed {seed}"


def _seed(names: Mapping[str, Mapping[int, str]], stream: str, seed: int) -> str:
    return names[stream].get(seed, f"{stream} seed {seed}")
