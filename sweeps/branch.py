"""Branching: ``grok branch --store STORE [overrides]``.

Asks   Which pair of streams keeps a fast seed fast: split and init, split and order, or init and order?
How    Takes parents from the seeds of a store: the best by validation loss at an early step, and as
       many random ones. Redraws one stream of a parent, keeps the others, and trains the children;
       then redraws two streams. ``--redraw layers.head`` redraws only one layer's initial weights;
       ``layers.blocks.0+layers.blocks.1`` redraws those of two layers.
       To keep promising parts and redraw the rest is importance splitting (Kahn and Harris 1951): it
       finds rare events with fewer runs.
       Only the children are judged, because the parents were chosen by their own loss.
Costs  parents x sets of redrawn streams x times. The plan is printed first; with dry_run=true, only the plan.
Read   The branching section of the report: super seeds among the children, by the kept streams or layers.

Example: grok branch --store results/store --seeds 0:100 --best 2 --random 2 --at 1500
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pandas as pd

from grok.cli.command import GO_ON, Parser, command
from grok.cli.compose import Settings, compose
from grok.cli.words import quoted
from grok.config import ArithmeticConfig
from grok.config.common import refuse_too_many_runs
from grok.errors import ConfigError
from grok.execute import execute
from grok.execute.planned import name_runs
from grok.store import Store, open_store
from grok.streams import ALL_REDRAWS, MAX_SEED, STREAMS, derive_seed, drawn_parents, redrawn_seeds
from sweeps.settings import arithmetic

REDRAWABLE: Final = ("split", "init", "order")
LAYER: Final = "layers."
"""Prefix of a layer's name in ``--redraw``: ``layers.head``, as in ``seeds.layers.head``."""


def condition_of(config: ArithmeticConfig) -> str:
    """Return the ``config_id`` of ``config``, including the user's own code."""
    (named,) = name_runs([config])
    return named.identity.config_id


def candidates(store: Store, config: ArithmeticConfig, seeds: range | None) -> pd.DataFrame:
    """Return the finished runs of ``config``'s condition that derive all streams from their master seed.

    Only master seeds in ``seeds`` count (None: all). One row per run, indexed by ``run_id``, ordered by seed.

    Raises:
        ConfigError: some of ``seeds`` are not finished, so a later choice could differ.
    """
    runs = store.runs()
    runs = runs[(runs["config_id"] == condition_of(config)) & (runs["status"] == "completed")]
    if seeds is not None:
        runs = runs[runs["seed"].isin(seeds)]
    derived = [all(row[f"seed_{s}"] == derive_seed(int(row["seed"]), s) for s in STREAMS) for _, row in runs.iterrows()]
    alone = runs["config.seeds.layers"] == "{}"
    runs = runs[pd.Series(derived, index=runs.index, dtype=bool) & alone]
    # The first run of a seed stands for it, not a repeat.
    chosen = runs.sort_values(["replicate", "run_id"]).drop_duplicates("seed")
    if seeds is not None and len(chosen) < len(seeds):
        raise ConfigError(
            f"--seeds {seeds.start}:{seeds.stop}: {len(chosen)} of {len(seeds)} are finished with these settings; "
            "train the others first"
        )
    return chosen.sort_values("seed").set_index("run_id")


def choose(store: Store, runs: pd.DataFrame, *, best: int, random: int, at: int) -> pd.DataFrame:
    """Return the ``best`` runs by validation loss at step ``at``, and ``random`` others, drawn at random.

    Raises:
        ConfigError: there are too few runs, or some were not evaluated at that step.
    """
    if len(runs) < best + random:
        raise ConfigError(
            f"--best {best} --random {random}: the store has {len(runs)} finished seeds with these settings; "
            "train more, or ask for fewer"
        )
    curves = store.curves(list(runs.index), ["run_id", "step", "val_loss"])
    losses = curves[curves["step"] == at].set_index("run_id")["val_loss"].reindex(runs.index)
    if losses.isna().any():
        steps = ", ".join(str(step) for step in sorted(curves["step"].unique())[:12])
        raise ConfigError(f"--at {at}: the runs were not evaluated at that step, but at {steps} ...")
    fastest = losses.sort_values(kind="stable").index[:best]
    others = runs.index.difference(fastest, sort=False)
    first = int(runs["seed"].iloc[0])
    return runs.loc[[*fastest, *others[drawn_parents(first, len(others), random)]]]


def children(parent: pd.Series, settings: Settings, redraws: Sequence[str], times: int) -> Iterator[ArithmeticConfig]:
    """Yield the configs of ``parent``'s children: ``times`` runs for each set of redrawn streams.

    The new seeds are those of :func:`grok.streams.redrawn_seeds`.
    """
    kept: dict[str, Any] = {}
    for stream in STREAMS:
        seed = int(parent[f"seed_{stream}"])
        kept[f"seeds__{stream}"] = None if seed == derive_seed(int(parent["seed"]), stream) else seed
    layers = json.loads(parent["config.seeds.layers"])
    for redrawn in redraws:
        for count in range(times):
            new = redrawn_seeds(str(parent["trajectory_id"]), redrawn, count)
            streams = {f"seeds__{s}": seed for s, seed in new.items() if not s.startswith(LAYER)}
            redrawn_layers = {s.removeprefix(LAYER): seed for s, seed in new.items() if s.startswith(LAYER)}
            seeds = {**kept, **streams, "seeds__layers": layers | redrawn_layers}
            yield arithmetic(settings, seed=int(parent["seed"]), **seeds)


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
        few = set(streams) <= set(REDRAWABLE) and len(streams) <= 2
        layers = all(len(stream) > len(LAYER) and stream.startswith(LAYER) for stream in streams)
        if not (few or layers) or len(set(streams)) < len(streams):
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
    parser = Parser(
        prog="grok branch",
        description=str(__doc__).replace("``", ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", required=True, help="the store that has the parents and gets the children")
    parser.add_argument("--parents", help="run_ids (or their beginnings), separated by commas, instead of a choice")
    parser.add_argument("--seeds", help="choose among these master seeds, as FIRST:END (default: all in the store)")
    parser.add_argument("--best", type=int, default=2, help="parents by lowest validation loss (default 2)")
    parser.add_argument("--random", type=int, default=2, help="additional random parents (default 2)")
    parser.add_argument("--at", type=int, default=1500, help="step at which the best are chosen (default 1500)")
    parser.add_argument(
        "--redraw", default=ALL_REDRAWS, help=f"streams to redraw, or layers.NAME (default {ALL_REDRAWS})"
    )
    parser.add_argument("--times", type=int, default=4, help="children per parent and redraw (default 4)")
    parser.add_argument(
        "overrides", nargs="*", metavar="NAME=VALUE", help="settings of the parents and children, as for `grok run`"
    )
    return parser


def planned(argv: Sequence[str]) -> list[ArithmeticConfig]:
    """Choose parents, print the plan and return their children.

    Raises:
        ConfigError, StoreError: the arguments are wrong, or the store has no such parents.
    """
    arguments = parser().parse_intermixed_args(argv)
    for name, least in {"best": 0, "random": 0, "at": 1, "times": 1}.items():
        if getattr(arguments, name) < least:
            raise ConfigError(f"--{name} {getattr(arguments, name)}: expected at least {least}")
    for word in arguments.overrides:
        if word.startswith(("seed=", "seeds.", "store.path=")):
            raise ConfigError(f"{word}: the parents' streams are kept or redrawn, and --store names the store")
    redraws = redraws_of(arguments.redraw)
    settings = compose([*arguments.overrides, f"store.path={quoted(arguments.store)}"])
    config = arithmetic(settings)
    store = open_store(arguments.store)
    if arguments.parents is not None:
        rows = [store.run(name) for name in arguments.parents.split(",")]
        for row in rows:
            if row["config_id"] != condition_of(config):
                raise ConfigError(f"--parents: run {row['run_id']} has other settings than this command")
        parents = pd.DataFrame(rows).set_index("run_id")
    else:
        runs = candidates(store, config, seeds_of(arguments.seeds))
        parents = choose(store, runs, best=arguments.best, random=arguments.random, at=arguments.at)
    refuse_too_many_runs(len(parents) * len(redraws) * arguments.times, f"--times {arguments.times}")
    runs_planned = [run for _, row in parents.iterrows() for run in children(row, settings, redraws, arguments.times)]
    print(
        f"parents: {len(parents)} (seeds {', '.join(str(seed) for seed in parents['seed'])}), "
        f"redraws: {len(redraws)}, times: {arguments.times}, children: {len(runs_planned)}"
    )
    return runs_planned


@command(interrupted=GO_ON)
def main(argv: list[str]) -> int:
    """Choose parents and train their children."""
    return execute(planned(argv), argv=["python", "-m", "sweeps.branch", *argv]).exit_status


if __name__ == "__main__":
    sys.exit(main())
