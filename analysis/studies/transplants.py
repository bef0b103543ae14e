"""The transplants of a store: one recipient, one donor, and their runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.observations import Observations, in_words, seed_names, varying_columns
from analysis.records import LAYERS, options_of
from grok.streams import derive_seed

STREAMS = ("split", "order")
"""Streams that a transplant can exchange in addition to layers."""

Exchanged = Mapping[str, tuple[int, ...]]
"""The recipient's seed of each stream, and the donor's if the stream is a factor."""


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
    """Return every (recipient, donor) pair with runs of equal settings, split and order.

    If a command of ``sweeps.layers`` named a donor's split or order (``--donor-order``), the stream is a factor, too.
    Layers that were always exchanged together are one factor.
    """
    rows = observations.arithmetic
    if rows.empty or (rows["layers"] == "{}").all():
        return []
    maps = rows["layers"].map(json.loads)
    swapped, plain = rows[maps.map(bool)], rows[~maps.map(bool)]
    settings, varying = varying_columns(rows), varying_columns(swapped)
    named = donors_named(observations.sweeps)
    names = {stream: seed_names(rows, stream) for stream in ("init", *STREAMS)}
    names["init"] = _donors(observations.sweeps) | names["init"]
    entries = []
    for key, group in swapped.groupby(["seed_init", *settings], dropna=False, sort=True):
        alone = _equal(plain, ["seed_init", *settings], key)
        for donor in sorted({seed for m in maps[group.index] for seed in m.values()}):
            mine = group[[set(m.values()) == {donor} for m in maps[group.index]]]
            for streams in _exchanged(mine, named):
                own = mine[_within(mine, streams)]
                if len(own) < 2:  # one seed of a scan of a layer
                    continue
                every = pd.concat([_repeats(alone[_within(alone, streams)], own), own])
                factors, design = _design(every, maps, streams)
                first = own.iloc[0]
                setting = ", ".join(f"{c.removeprefix('config.')}={in_words(first[c])}" for c in varying)
                place = tuple(seeds[0] for seeds in streams.values())
                whose = _seed(names, "init", int(donor))
                others = {s: _stream(names, s, seeds[1]) for s, seeds in streams.items() if len(seeds) > 1}
                recipient = _seed(names, "init", int(first["seed_init"]))
                transplant = Transplant(recipient, whose, factors, every, design, setting, others)
                entries.append((place, int(first["seed_init"]), transplant))
    return [transplant for *_, transplant in sorted(entries, key=lambda entry: entry[:2])]


def donors_named(sweeps: Sequence[Mapping[str, Any]]) -> dict[str, set[int]]:
    """Return the donors' seeds in the commands of ``sweeps.layers``, by stream."""
    named: dict[str, set[int]] = {stream: set() for stream in STREAMS}
    for options in _commands(sweeps):
        for stream in STREAMS:
            seed = options.get(f"--donor-{stream}", "")
            named[stream] |= {int(seed)} if seed.isdecimal() else set()
    return named


def _donors(sweeps: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return the donors of the commands of ``sweeps.layers`` in words, by the init seed of their weights."""
    masters = {options.get("--donor", "") for options in _commands(sweeps)}
    known = (int(text) for text in masters if text.isdecimal() and len(text) < 19)
    return {derive_seed(master, "init"): f"seed {master}" for master in known}


def _commands(sweeps: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the options of every recorded command of ``sweeps.layers``."""
    recorded = ([str(word) for word in sweep.get("argv", ())] for sweep in sweeps)
    return [options_of(words) for words in recorded if LAYERS in words]


def _exchanged(mine: pd.DataFrame, named: Mapping[str, set[int]]) -> Iterator[Exchanged]:
    """Yield the splits and orders of each transplant among runs with one donor's weights."""
    cells = sorted(set(zip(mine["seed_split"], mine["seed_order"], strict=True)))
    used = set()
    for cell in sorted(cells, key=lambda c: any(seed in named[s] for s, seed in zip(STREAMS, c, strict=True))):
        if cell in used:  # an earlier cell has it as its donor's
            continue
        others = [
            sorted({c[i] for c in cells if c[i] in named[stream]} - {cell[i]}) if cell[i] not in named[stream] else []
            for i, stream in enumerate(STREAMS)
        ]
        for split in others[0] or [None]:
            for order in others[1] or [None]:
                pairs = [
                    (own,) if other is None else (own, other) for own, other in zip(cell, (split, order), strict=True)
                ]
                used |= {(s, o) for s in pairs[0] for o in pairs[1]}
                yield {stream: tuple(int(seed) for seed in pair) for stream, pair in zip(STREAMS, pairs, strict=True)}


def _within(rows: pd.DataFrame, streams: Exchanged) -> pd.Series:
    inside = pd.Series(True, index=rows.index)
    for stream, seeds in streams.items():
        inside &= rows[f"seed_{stream}"].isin(seeds)
    return inside


def _design(rows: pd.DataFrame, maps: pd.Series, streams: Exchanged) -> tuple[list[str], np.ndarray]:
    """Return the names of the factors, and the design (runs, factors)."""
    layers = sorted({name for run in rows.index for name in maps[run]})
    columns: dict[bytes, tuple[list[str], np.ndarray]] = {}
    for layer in layers:
        bits = np.array([float(layer in maps[run]) for run in rows.index])
        columns.setdefault(bits.tobytes(), ([], bits))[0].append(layer)
    for stream, seeds in streams.items():
        if len(seeds) > 1:
            bits = (rows[f"seed_{stream}"] == seeds[1]).to_numpy(dtype=float)
            columns[stream.encode()] = ([stream], bits)
    return [" + ".join(names) for names, _ in columns.values()], np.column_stack([b for _, b in columns.values()])


def _equal(rows: pd.DataFrame, columns: Sequence[str], values: Sequence[Any]) -> pd.DataFrame:
    for column, value in zip(columns, values, strict=True):
        rows = rows[rows[column].isna()] if pd.isna([value])[0] else rows[rows[column] == value]
    return rows


def _stream(names: Mapping[str, Mapping[int, str]], stream: str, seed: int) -> str:
    master = names[stream].get(seed)
    return f"{stream} of {master}" if master else f"{stream} seed {seed}"


def _seed(names: Mapping[str, Mapping[int, str]], stream: str, seed: int) -> str:
    return names[stream].get(seed, f"{stream} seed {seed}")


def _repeats(plain: pd.DataFrame, swapped: pd.DataFrame) -> pd.DataFrame:
    """Return the recipient's runs to compare with those with exchanged layers.

    If these are perturbed, the recipient's are, too: its unperturbed run may be the reason why it is a recipient, so
    it is never judged. All are as long as the others, because a shorter run, such as one of a census, would censor all
    times at its end. Where none is left by a rule, all are kept.
    """
    perturbed = plain[plain["config.perturb.ulps"].isin(swapped["config.perturb.ulps"].unique())]
    plain = perturbed if len(perturbed) else plain
    long = plain[plain["config.train.steps"] >= swapped["config.train.steps"].min()]
    return long if len(long) else plain
