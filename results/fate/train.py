"""When is a seed's fate fixed? ``python results/fate/train.py PART --store STORE [SETTING ...]`` trains one part of it.

Parts, in order:
  parents   the super seeds of results/diary and as many ordinary ones, trained here: a parent counts as super only if
            it is super here. They keep checkpoints at the steps at which children leave them.
  trunks    each parent with other orders from the start, with the same checkpoints.
  forward   each parent, its order redrawn from a later step on.
  reverse   each trunk, from a later step on in the parent's own order.
  ulps      each parent, all weights moved by one unit in the last place at a later step: the control for chaos.
  sizes     the same at two steps, by larger moves.
  cells     sampled cells of split, init and order: fresh seeds on three axes.
  alone     scans of the order and of the init at one seed of the others.

The same command goes on where it stopped: ``timeout -s INT 540`` makes pieces of nine minutes. Checkpoints are valid on
the machine that made them and are never committed; without them a child trains from its first step. ``PLAN=1`` plans.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from grok.commands.command import GO_ON, Parser, command
from grok.commands.compose import arithmetic, compose
from grok.config import RunConfig
from grok.errors import ConfigError
from grok.execute import Designed, execute
from grok.store import Purpose, Purposes, check_path, open_store
from grok.streams import STREAMS, Stream
from grok.sweeps import branch

DIARY = Path(__file__).parents[1] / "diary" / "store"
STEPS = (49, 98, 196, 392, 784, 1568)
"""Steps of a change: ends of epochs, so that no example is met twice or missed. ``--steps`` names others."""
SUPER, LAST = 0.98, 3000
SIZES = (1, 2**5, 2**10, 2**15, 2**20)
AXES = ("split", "init", "order")


class Fate:
    """The plans of every part, for one store."""

    def __init__(self, store: str, steps: str | None, how: list[str], number: dict[str, int]) -> None:
        self.store, self.steps, self.number = store, steps, number
        self.how = ["eval.every=250", *how]
        self.kept = [*self.how, f"checkpoint.keep_steps=[{','.join(map(str, STEPS))}]"]

    def configs(self, how: list[str], each: list[dict[str, Any]]) -> list[RunConfig]:
        base = compose([*how, f"store.path={self.store}"])
        return [arithmetic(base, **values) for values in each]

    def parents(self) -> Iterator[Designed[RunConfig]]:
        """Name super seeds, whose choice is by their results elsewhere, and draw ordinary ones."""
        rows = open_store(DIARY).runs(["seed", "val_acc", "config.train.steps", *(f"seed_{s}" for s in STREAMS)])
        census = open_store(DIARY).designs().query("role == 'member' and choice == 'given' and kind == 'sweep'")
        rows = rows[rows["run_id"].isin(census["run_id"]) & (rows["config.train.steps"] == LAST)].sort_values("seed")
        fast = rows[rows["val_acc"] > SUPER]["seed"].tolist()
        others = rows[rows["val_acc"] <= SUPER]["seed"].tolist()
        drawn = Stream("sweep", 0).at("fate", "ordinary").permutation(len(others))[: self.number["ordinary"]]
        chosen = {"named": fast, "drawn": [others[i] for i in drawn]}
        for choice, seeds in chosen.items():
            detail = {"by": "val_acc", "at": LAST, "of": len(rows), "store": "results/diary"}
            each = [Purpose(unit={"seed": seed}, choice=choice, choice_detail=detail) for seed in seeds]
            yield Designed(self.configs(self.kept, [{"seed": seed} for seed in seeds]), Purposes("sweep", each))

    def chosen(self) -> str:
        """Return the parents: the first super ones of a drawn order, and the ordinary ones."""
        if not check_path(self.store):
            raise ConfigError(f"{self.store} has no parents yet: expected the part parents first")
        store = open_store(self.store)
        rows = store.designs().query("kind == 'sweep' and role == 'member'").merge(store.runs(["val_acc"]), on="run_id")
        named = rows[(rows["choice"] == "named") & (rows["val_acc"] > SUPER)]["run_id"].tolist()
        order = Stream("sweep", 0).at("fate", "parents").permutation(len(named))[: self.number["super"]]
        drawn = rows[rows["choice"] == "drawn"]["run_id"].tolist()
        return ",".join([*(named[i] for i in order), *drawn])

    def branched(self, *options: str, how: list[str] | None = None) -> Designed[RunConfig]:
        return branch.planned(["--store", self.store, "--parents", self.chosen(), *options, *(how or self.how)])

    def trunks(self) -> Iterator[Designed[RunConfig]]:
        yield self.branched("--redraw", "order", "--times", str(self.number["orders"]), how=self.kept)

    def later(self, *options: str, steps: tuple[int, ...] = STEPS) -> Iterator[Designed[RunConfig]]:
        yield self.branched("--at-step", self.steps or ",".join(map(str, steps)), *options)

    def forward(self) -> Iterator[Designed[RunConfig]]:
        return self.later("--redraw", "order", "--times", str(self.number["orders"]))

    def reverse(self) -> Iterator[Designed[RunConfig]]:
        return self.later("--redraw", "order", "--reverse", "--times", str(self.number["orders"]))

    def ulps(self) -> Iterator[Designed[RunConfig]]:
        return self.later("--ulps", "1", "--times", str(self.number["moves"]))

    def sizes(self) -> Iterator[Designed[RunConfig]]:
        for size in SIZES:
            yield from self.later("--ulps", str(size), "--times", str(self.number["moves"]), steps=(98, 1568))

    def cells(self) -> Iterator[Designed[RunConfig]]:
        """Draw cells of a cube of fresh seeds."""
        n, levels = self.number["cells"], 50
        drawn = Stream("sweep", 0).at("fate", "cells")
        places = np.unravel_index(drawn.permutation(levels**3)[:n], (levels,) * 3)
        each = [dict(zip(AXES, (10_000 + int(i) for i in cell), strict=True)) for cell in zip(*places, strict=True)]
        configs = self.configs(self.how, [{f"seeds__{axis}": seed for axis, seed in cell.items()} for cell in each])
        purposes = [Purpose(role="cell", unit={**cell, "repeat": 0}, choice="drawn") for cell in each]
        yield Designed(configs, Purposes("crossed", purposes))

    def alone(self) -> Iterator[Designed[RunConfig]]:
        for axis in ("order", "init"):
            seeds = range(self.number["alone"])
            yield Designed(self.configs(self.how, [{"seed": 0, f"seeds__{axis}": seed} for seed in seeds]), "given")


PARTS = ("parents", "trunks", "forward", "reverse", "ulps", "sizes", "cells", "alone")
SIZES_OF = {"super": 8, "ordinary": 4, "orders": 4, "moves": 2, "cells": 1500, "alone": 300}
"""Sizes for processors; a GPU takes --super 22 --ordinary 22 --orders 8 --cells 6000 --alone 500."""


@command(interrupted=GO_ON)
def main(argv: list[str]) -> int:
    """Train one part."""
    parser = Parser(prog="train.py", description=str(__doc__).replace("``", ""))
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--store", required=True, help="folder of the store")
    parser.add_argument("--steps", help="of a change, as 1,6,25 (default: the part's own)")
    for name, size in SIZES_OF.items():
        parser.add_argument(f"--{name}", type=int, default=size, help=f"default {size}")
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    arguments = parser.parse_intermixed_args(argv)
    how = ["dry_run=true" if os.environ.get("PLAN") else "require_clean=true", *arguments.settings]
    fate = Fate(arguments.store, arguments.steps, how, {name: getattr(arguments, name) for name in SIZES_OF})
    plans = sum(getattr(fate, arguments.part)(), Designed[RunConfig]())
    return execute(plans, argv=["python", "results/fate/train.py", *argv]).exit_status


if __name__ == "__main__":
    sys.exit(main())
