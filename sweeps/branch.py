"""Branching: ``grok branch --store STORE [overrides]``.

Asks   Which pair of streams keeps a fast seed fast: split and init, split and order, or init and order?
How    Takes parents from the seeds of a store: the best by validation loss at an early step, and as
       many random ones. Redraws one stream of a parent, keeps the others, and trains the children;
       then redraws two streams. ``--redraw layers.head`` redraws only one layer's initial weights;
       ``layers.blocks.0+layers.blocks.1`` redraws those of two layers.
       --at-step 49,98 redraws the order (or, with --ulps N, moves all weights by N units in the last place) only after
       that step; --reverse begins with the other order and goes on with the parent's.
       To keep promising parts and redraw the rest is importance splitting (Kahn and Harris 1951): it
       finds rare events with fewer runs.
       Only the children are judged, because the parents were chosen by their own loss.
Costs  parents x sets of redrawn streams x times. The plan is printed first; with dry_run=true, only the plan.
Read   The branching section of the report: super seeds among the children, by the kept streams or layers.

Example: grok branch --store results/store --seeds 0:100 --best 2 --random 2 --at 1500
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pandas as pd

from grok.commands.command import GO_ON, Parser, command, natural, positive
from grok.config import ArithmeticConfig, RunConfig
from grok.config.common import refuse_too_many_runs
from grok.errors import ConfigError
from grok.execute import Designed, execute
from grok.execute.groups import prepare_runs
from grok.execute.plan import StoredRuns
from grok.store import Store, open_store
from grok.streams import MAX_SEED, Stream
from grok.sweeps import choosing

ALL_REDRAWS: Final = "split,init,order,split+init,split+order,init+order"
"""The sets of streams that are redrawn, as ``--redraw`` takes them."""
LAYER: Final = "layers."
"""Prefix of a layer's name in ``--redraw``: ``layers.head``, as in ``seeds.layers.head``."""


def choose(store: Store, runs: pd.DataFrame, arguments: argparse.Namespace) -> dict[str, choosing.Chosen]:
    """Return the parents that ``--best`` (by validation loss at ``--at``) and ``--random`` choose among ``runs``.

    Raises:
        ConfigError: ``runs`` are too few, some seeds of ``--seeds`` are not among them, so that a later choice could
            differ, or some were not evaluated at that step.
    """
    best, random, seeds = arguments.best, arguments.random, seeds_of(arguments.seeds)
    runs = runs[choosing.are_masters(runs) & runs["member"]].sort_values("seed")
    wanted, option = max(1, best + random), ""
    if seeds is not None:
        runs, wanted, option = runs[runs["seed"].isin(seeds)], max(wanted, len(seeds)), f" --seeds {arguments.seeds}"
    if len(runs) < wanted:
        raise ConfigError(
            f"--best {best} --random {random}{option}: {arguments.store} has {len(runs)} of {wanted} finished seeds "
            f"with these settings (only master seeds count, and none that {choosing.NO_MEMBERS}); train more, or ask "
            "for fewer"
        )
    curves = store.curves(list(runs.index), ["run_id", "step", "val_loss"]).dropna()
    counts, half = curves["step"].value_counts(), int(runs["config.train.steps"].min()) / 2
    steps = sorted(map(int, counts.index[counts == len(runs)]))  # those that stop early have fewer
    at = arguments.at or min(steps, key=lambda step: abs(step - half), default=0)
    losses = curves[curves["step"] == at].set_index("run_id")["val_loss"].reindex(runs.index)
    if losses.isna().any():
        none = "and they have none in common" if len(counts) else "they have no curves"
        some = f"all have one at {', '.join(map(str, steps[:12]))} ..." if steps else f"{none}: use --parents"
        raise ConfigError(f"--at {at}: not all {len(runs)} runs have a loss at that step; {some}")
    fastest = losses.sort_values(kind="stable").index[:best]
    others = runs.index.difference(fastest, sort=False)
    drawn = others[drawn_parents(int(runs["seed"].iloc[0]), len(others), random)]
    among = {"seeds": arguments.seeds} if seeds is not None else {}
    by_loss: choosing.Chosen = "parent", "best", {"by": "val_loss", "at": at, "best": best, "of": len(runs), **among}
    how = "named" if among and random == len(others) else "drawn"  # who gives the range has chosen
    by_lot: choosing.Chosen = "parent", how, {"by": "lot", "random": random, "of": len(others), **among}
    return dict.fromkeys(fastest, by_loss) | dict.fromkeys(drawn, by_lot)


def drawn_parents(first_seed: int, others: int, count: int) -> list[int]:
    """Return the places, among ``others`` candidates in the order of their seeds, of ``count`` random parents.

    ``first_seed``: the smallest master seed of all candidates, the best ones included.
    """
    return [int(i) for i in Stream("sweep", first_seed).at("branch", "random parents").permutation(others)[:count]]


def children(
    parent: choosing.Row, how: ArithmeticConfig, redraws: Sequence[str], times: int
) -> Iterator[tuple[RunConfig, dict[str, Any]]]:
    """Yield ``parent``'s children, ``times`` for each set of redrawn streams, with what their design says of them."""
    own = choosing.settings_of(parent, how)
    for redrawn, count in itertools.product(redraws, range(times)):
        new = choosing.redrawn_seeds(str(parent["trajectory_id"]), redrawn, count)
        layers = {s.removeprefix(LAYER): seed for s, seed in new.items() if s.startswith(LAYER)}
        seeds = {f"seeds.{s}": seed for s, seed in new.items() if not s.startswith(LAYER)}
        seeds |= {"seeds.layers": own["seeds.layers"] | layers}
        yield choosing.config_of(own | seeds), {"redrawn": tuple(redrawn.split("+")), "unit": {"repeat": count}}


def switched(
    parent: choosing.Row, how: ArithmeticConfig, steps: Sequence[int], arguments: argparse.Namespace, stored: StoredRuns
) -> Iterator[tuple[RunConfig, dict[str, Any]]]:
    """Yield ``parent``'s children that change after each of ``steps``, with what their design says of them.

    Child number ``count`` has one other order at every step: that of the child whose whole order is redrawn. In the
    reverse direction the run with this order, if it is stored, is the donor.
    """
    own = choosing.settings_of(parent, how)
    for step, count in itertools.product(steps, range(arguments.times)):
        unit: dict[str, Any] = {"repeat": count, "step": step}
        if arguments.redraw:
            (other,) = choosing.redrawn_seeds(str(parent["trajectory_id"]), "order", count).values()
            first, then = own["seeds.order"], other
            purpose: dict[str, Any] = {"redrawn": ("order",), "from_step": step, "unit": unit}
            if arguments.reverse:
                first, then = then, first
                (straight,) = prepare_runs([choosing.config_of(own | {"seeds.order": first})])
                purpose |= {"unit": {**unit, "reverse": True}, "donor_run_id": stored.like(straight)}
            yield choosing.config_of(own | {"seeds.order": first, "switch.step": step, "switch.order": then}), purpose
        if arguments.ulps is not None:
            moved = {"seeds.perturb": count, "switch.step": step, "switch.ulps": arguments.ulps}
            unit = {**unit, "kind": "ulp", "ulps": arguments.ulps}
            yield choosing.config_of(own | moved), {"redrawn": (), "from_step": step, "unit": unit}


def steps_of(arguments: argparse.Namespace) -> list[int] | None:
    """Return the steps of ``--at-step``; None without it.

    Raises:
        ConfigError: they are no steps, or the other options do not go with them.
    """
    text, redraw, ulps = arguments.at_step, arguments.redraw, arguments.ulps
    if text is None:
        if arguments.reverse or ulps is not None:
            raise ConfigError("--reverse and --ulps say what changes in mid-run: give --at-step T1,T2 too")
        return None
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        raise ConfigError(f"--at-step {text}: expected steps with commas, for example 49,98,245")
    if redraw not in (None, "order") or (redraw is None and ulps is None):
        raise ConfigError(f"--at-step {text}: expected --redraw order, --ulps N, or both")
    if arguments.reverse and redraw is None:
        raise ConfigError("--reverse exchanges the two orders: give --redraw order too")
    return list(dict.fromkeys(int(step) for step in text.split(",")))


def redraws_of(text: str) -> list[str]:
    """Return the sets of streams or layers in the text of ``--redraw``.

    Raises:
        ConfigError: a set has an unknown stream, one stream twice, all three streams, or streams and layers.

    >>> redraws_of("order,split+init,layers.head")
    ['order', 'split+init', 'layers.head']
    """
    redraws = list(dict.fromkeys(text.split(",")))
    for redrawn in redraws:
        streams = redrawn.split("+")
        layers = all(len(stream) > len(LAYER) and stream.startswith(LAYER) for stream in streams)
        if not choosing.is_redraw(streams) and (not layers or len(set(streams)) < len(streams)):
            raise ConfigError(
                f"--redraw {text}: {redrawn!r} is not one or two of split, init, order joined by +, nor layers.NAME"
            )
    return redraws


def seeds_of(text: str | None) -> range | None:
    """Return the master seeds of ``--seeds FIRST:END``, without END; None for None.

    Raises:
        ConfigError: the text has another form, or the range is empty.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,19}):(\d{1,19})", text)
    if match is None or not int(match[1]) < int(match[2]) <= MAX_SEED:
        raise ConfigError(f"--seeds {text}: expected FIRST:END with FIRST below END, for example 0:100")
    return range(int(match[1]), int(match[2]))


def parser() -> Parser:
    """Return the command's arguments."""
    parser = choosing.parser_of("grok branch", __doc__)
    parser.add_argument("--store", required=True, help="the store that has the parents and gets the children")
    parser.add_argument("--parents", help="run_ids (or their beginnings), separated by commas, instead of a choice")
    parser.add_argument("--seeds", help="choose among these master seeds, as FIRST:END (default: all in the store)")
    parser.add_argument("--best", type=natural, default=2, help="parents by lowest validation loss (default 2)")
    parser.add_argument("--random", type=natural, default=2, help="additional random parents (default 2)")
    parser.add_argument("--at", type=positive, help="step at which the best are chosen (default: half of the steps)")
    parser.add_argument("--redraw", help=f"streams to redraw, or layers.NAME (default {ALL_REDRAWS})")
    parser.add_argument("--at-step", help="steps, with commas, after which the order is redrawn or the weights move")
    parser.add_argument("--reverse", action="store_true", help="with --at-step: from the other order to the parent's")
    parser.add_argument(
        "--ulps", type=positive, help="with --at-step: units in the last place by which all weights move"
    )
    parser.add_argument("--times", type=positive, default=4, help="children per parent and redraw (default 4)")
    return parser


def planned(argv: Sequence[str]) -> Designed[RunConfig]:
    """Choose parents, print the plan and return their children, with their design.

    Raises:
        ConfigError, StoreError: the arguments are wrong, or the store has no such parents.
    """
    arguments = parser().parse_intermixed_args(argv)
    why = "the parents' streams are kept or redrawn (--redraw, --at-step), and --store names the store"
    how = choosing.command_settings(arguments, ("seed=", "seeds.", "switch.", "store.path="), why)
    steps = steps_of(arguments)
    redraws = redraws_of(arguments.redraw or ALL_REDRAWS) if steps is None else [*(arguments.redraw or "").split()]
    store = open_store(arguments.store)
    if arguments.parents is None:
        parents = choose(store, choosing.eligible(store, how, choosing.selecting(how, arguments.overrides)), arguments)
    else:
        parents = dict.fromkeys(_named(store, arguments.parents), ("parent", "named", None))
    sets = len(redraws) if steps is None else len(steps) * (len(redraws) + (arguments.ulps is not None))
    refuse_too_many_runs(len(parents) * sets * arguments.times, f"--times {arguments.times}")
    stored = StoredRuns(store if arguments.reverse else None)

    def following(parent: choosing.Row, role: str) -> Iterator[tuple[RunConfig, dict[str, Any]]]:
        if steps is None:
            return children(parent, how, redraws, arguments.times)
        return switched(parent, how, steps, arguments, stored)

    plan = choosing.planned_after("branch", store, parents, following)
    seeds = ", ".join(map(str, store.runs(["seed"]).set_index("run_id")["seed"][list(parents)]))
    print(f"parents: {len(parents)} (seeds {seeds}), redraws: {sets}, times: {arguments.times}, children: {len(plan)}")
    return plan


def _named(store: Store, names: str) -> list[str]:
    """Return the runs of ``--parents``.

    Raises:
        ConfigError: one is not finished, or changes on its way itself.
    """
    rows = [store.run(name) for name in names.split(",")]
    for row in rows:
        if row["mode"] != "arithmetic" or row["status"] != "completed" or not pd.isna(row["config.switch.step"]):
            raise ConfigError(f"--parents: run {row['run_id']}: expected a finished arithmetic run without switch.*")
    return [str(row["run_id"]) for row in rows]


@command(interrupted=GO_ON)
def main(argv: list[str]) -> int:
    """Choose parents and train their children."""
    return execute(planned(argv), argv=["python", "-m", "grok.sweeps.branch", *argv]).exit_status


if __name__ == "__main__":
    sys.exit(main())
