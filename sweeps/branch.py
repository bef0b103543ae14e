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
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pandas as pd

from grok.commands.command import GO_ON, Parser, command, natural, positive
from grok.commands.compose import Settings, arithmetic, compose
from grok.config import ArithmeticConfig, flatten
from grok.config.common import refuse_too_many_runs
from grok.config.fields import walk
from grok.config.values import literal
from grok.errors import ConfigError
from grok.execute import Designed, execute
from grok.execute.groups import PlannedRun, prepare_runs
from grok.execute.plan import StoredRuns, first_ancestors
from grok.store import Purpose, Purposes, Store, open_store
from grok.store.designs import TRAINED
from grok.streams import MAX_SEED, STREAMS, Stream, derive_seed

REDRAWABLE: Final = ("split", "init", "order")
ALL_REDRAWS: Final = "split,init,order,split+init,split+order,init+order"
"""The sets of streams that are redrawn, as ``--redraw`` takes them."""
NO_MEMBERS: Final = "were not asked for as members of a population before a result was stored"
"""Why runs are not among those to choose from."""
LAYER: Final = "layers."
"""Prefix of a layer's name in ``--redraw``: ``layers.head``, as in ``seeds.layers.head``."""


@dataclass(frozen=True)
class Conditions:
    """The condition of a command's settings among the runs of a store: at their own length, and at every other."""

    store: Store
    config: ArithmeticConfig
    run: PlannedRun
    runs: pd.DataFrame
    """The completed runs of this condition, of any length."""
    members: Collection[str]
    """Those of the :func:`population` of its master seeds."""

    @classmethod
    def of(cls, store: Store, config: ArithmeticConfig) -> Conditions:
        """Look up the runs of ``config`` in ``store``, of the present version of the user's own code."""
        (run,) = prepare_runs([config])
        runs = store.runs()
        lengths = runs["config.train.steps"].dropna().unique()
        alike = {run.under("train.steps", int(steps)).identity.config_id for steps in lengths}
        runs = runs[runs["config_id"].isin(alike) & (runs["status"] == "completed")]
        return cls(store, config, run, runs, population(store, runs[are_masters(runs)]))

    @property
    def at_length(self) -> pd.DataFrame:
        return self.runs[self.runs["config_id"] == self.run.identity.config_id]


def candidates(conditions: Conditions, seeds: range | None) -> pd.DataFrame:
    """Return the finished runs of a condition's population of master seeds, at its length.

    Only master seeds in ``seeds`` count (None: all). One row per run, indexed by ``run_id``, ordered by seed.

    Raises:
        ConfigError: some of ``seeds`` are not finished, so a later choice could differ.
    """
    runs = conditions.at_length
    if seeds is not None:
        runs = runs[runs["seed"].isin(seeds)]
    runs = runs[runs["run_id"].isin(conditions.members)]
    # The first run of a seed stands for it, not a repeat.
    chosen = runs.sort_values(["replicate", "run_id"]).drop_duplicates("seed")
    if seeds is not None and len(chosen) < len(seeds):
        raise ConfigError(
            f"--seeds {seeds.start}:{seeds.stop}: {len(chosen)} of {len(seeds)} are finished with these settings"
            f"{_why_so_few(conditions)}; train the others first"
        )
    return chosen.sort_values("seed").set_index("run_id")


def are_masters(runs: pd.DataFrame) -> pd.Series:
    """Return whether each run derives all streams from its master seed."""
    masters = runs["config.seeds.layers"] == "{}"
    for stream in STREAMS:
        masters &= runs[f"seed_{stream}"] == [derive_seed(int(seed), stream) for seed in runs["seed"]]
    return masters


def population(store: Store, runs: pd.DataFrame) -> set[str]:
    """Return which of ``runs``, all of one condition and of any length, were asked for before any result of theirs.

    Those are members of designs and cells of crossed designs, given or drawn. Runs that only extend others count if
    they extend all of them: going on with all chooses nothing. If no design claimed one of the runs so before it was
    trained, as in a store from before designs, all that have no other purpose count, and this is printed.
    """
    designs = store.designs()
    designs = designs[designs["run_id"].isin(runs["run_id"])]
    of_population = (designs["role"] == "member") | ((designs["role"] == "cell") & (designs["kind"] == "crossed"))
    if designs["results_seen"][of_population].all():
        runs = runs[~runs["run_id"].isin(designs["run_id"][~of_population & designs["role"].isin(TRAINED)])]
        if len(runs):
            print(
                f"{store.layout.root} says of no run with these settings what it was for before it was trained: all "
                "its seeds count as one population"
            )
        return set(runs["run_id"])
    trajectories = runs.set_index("run_id")["trajectory_id"]
    claims = designs[of_population & designs["choice"].isin(["given", "drawn"])]
    first = set(claims["run_id"][~claims["results_seen"]])
    begun = set(trajectories[list(first)])
    for _, later in claims[claims["results_seen"]].groupby("design_id"):
        extended = trajectories[list(later["run_id"])]
        if begun <= set(extended):
            first |= set(extended.index[extended.isin(begun)])
    return first


def _why_so_few(conditions: Conditions) -> str:
    """Return in words why runs of the store are no candidates; empty: there is no more to say."""
    here = conditions.at_length
    if here.empty:
        return _differences(conditions.store, conditions.config)
    masters = here[are_masters(here)]
    reasons = []
    if others := len(here) - len(masters):
        reasons.append(f"{others} of its runs have streams of their own, such as seeds.init: only master seeds count")
    if others := len(masters) - int(masters["run_id"].isin(conditions.members).sum()):
        reasons.append(f"{others} {NO_MEMBERS}")
    return f" ({'; '.join(reasons)})" if reasons else ""


def _differences(store: Store, config: ArithmeticConfig) -> str:
    """Return how the settings of most runs of the store differ from ``config``, as the words that give them."""
    runs = store.runs()
    runs = runs[(runs["mode"] == config.mode) & (runs["status"] == "completed")]
    if runs.empty:
        return ""
    most = runs["config_id"].value_counts().index[0]
    row = store.table("runs", [runs.loc[runs["config_id"] == most, "run_id"].iloc[0]], None).to_pylist()[0]
    names = {name for name, _, rule in walk(config) if rule.role in ("result", "length")}
    now = flatten(config)
    words = [f"{name}={row[f'config.{name}']}" for name in now if name in names and row[f"config.{name}"] != now[name]]
    shown = " ".join(words[:6]) + (" ..." if len(words) > 6 else "")
    return f" (most of its runs have {shown})" if words else ""


def choose(
    store: Store, runs: pd.DataFrame, *, best: int, random: int, at: int | None, among: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """Return the ``best`` runs by validation loss at step ``at``, and ``random`` others, drawn at random.

    ``at``: None for the evaluation nearest to half of the steps.

    The columns ``choice`` and ``choice_detail`` say how each was chosen; ``among``: more that the latter says.

    Raises:
        ConfigError: some were not evaluated at that step.
    """
    curves = store.curves(list(runs.index), ["run_id", "step", "val_loss"])
    if at is None:
        half = int(runs["config.train.steps"].min()) / 2
        at = min((int(step) for step in curves["step"].unique()), key=lambda step: abs(step - half))
    losses = curves[curves["step"] == at].set_index("run_id")["val_loss"].reindex(runs.index)
    if losses.isna().any():
        steps = ", ".join(str(step) for step in sorted(curves["step"].unique())[:12])
        raise ConfigError(f"--at {at}: the runs were not evaluated at that step, but at {steps} ...")
    fastest = losses.sort_values(kind="stable").index[:best]
    others = runs.index.difference(fastest, sort=False)
    first = int(runs["seed"].iloc[0])
    drawn = others[drawn_parents(first, len(others), random)]
    by_loss = {"by": "val_loss", "at": at, "best": best, "of": len(runs), **(among or {})}
    by_lot = {"by": "lot", "random": random, "of": len(others), **(among or {})}
    chosen = runs.loc[[*fastest, *drawn]].assign(choice=["best"] * len(fastest) + ["drawn"] * len(drawn))
    chosen["choice_detail"] = pd.Series([by_loss] * len(fastest) + [by_lot] * len(drawn), chosen.index, dtype=object)
    return chosen


def redrawn_seeds(trajectory_id: str, redrawn: str, count: int) -> dict[str, int]:
    """Return the new seeds, by stream or layer, of child number ``count`` of a run with ``redrawn`` streams.

    They follow from the parent's trajectory: the same command gives the same children, two parents have no child in
    common. ``redrawn``: streams joined by ``+``, as in ``split+init``.
    """
    fresh = Stream("sweep", int(trajectory_id[:15], 16)).at("branch", redrawn, count)
    return {name: int(fresh.at(name).integers(1, 2**31)[0]) for name in redrawn.split("+")}


def drawn_parents(first_seed: int, others: int, count: int) -> list[int]:
    """Return the places, among ``others`` candidates in the order of their seeds, of ``count`` random parents.

    ``first_seed``: the smallest master seed of all candidates, the best ones included.
    """
    return [int(i) for i in Stream("sweep", first_seed).at("branch", "random parents").permutation(others)[:count]]


def children(
    parent: pd.Series, settings: Settings, redraws: Sequence[str], times: int
) -> Iterator[tuple[ArithmeticConfig, str, int]]:
    """Yield ``parent``'s children: ``times`` runs for each set of redrawn streams, with that set and the count.

    The new seeds are those of :func:`redrawn_seeds`.
    """
    kept = _streams_of(parent)
    layers = kept["seeds__layers"]
    for redrawn in redraws:
        for count in range(times):
            new = redrawn_seeds(str(parent["trajectory_id"]), redrawn, count)
            streams = {f"seeds__{s}": seed for s, seed in new.items() if not s.startswith(LAYER)}
            redrawn_layers = {s.removeprefix(LAYER): seed for s, seed in new.items() if s.startswith(LAYER)}
            seeds = {**kept, **streams, "seeds__layers": layers | redrawn_layers}
            yield arithmetic(settings, seed=int(parent["seed"]), **seeds), redrawn, count


def _streams_of(parent: pd.Series) -> dict[str, Any]:
    """Return the settings of ``parent``'s streams and layers, those as null that its master seed gives."""
    kept: dict[str, Any] = {"seeds__layers": json.loads(parent["config.seeds.layers"])}
    for stream in STREAMS:
        seed = int(parent[f"seed_{stream}"])
        kept[f"seeds__{stream}"] = None if seed == derive_seed(int(parent["seed"]), stream) else seed
    return kept


def switched(
    parent: pd.Series, settings: Settings, steps: Sequence[int], arguments: argparse.Namespace, stored: StoredRuns
) -> Iterator[tuple[ArithmeticConfig, dict[str, Any]]]:
    """Yield ``parent``'s children that change after each of ``steps``, with what their design says beside the parent.

    Child number ``count`` has one other order at every step: that of the child whose whole order is redrawn. In the
    reverse direction the run with this order, if it is stored, is the donor.
    """
    seed, kept = int(parent["seed"]), _streams_of(parent)
    own = int(parent["seed_order"])
    for step, count in itertools.product(steps, range(arguments.times)):
        unit: dict[str, Any] = {"seed": seed, "repeat": count, "step": step}
        if arguments.redraw:
            (other,) = redrawn_seeds(str(parent["trajectory_id"]), "order", count).values()
            first, then = (other, own) if arguments.reverse else (kept["seeds__order"], other)
            straight = arithmetic(settings, seed=seed, **{**kept, "seeds__order": first})
            moved: dict[str, Any] = {"redrawn": ("order",), "from_step": step, "unit": unit}
            if arguments.reverse:
                moved |= {"unit": {**unit, "reverse": True}, "donor_run_id": stored.like(prepare_runs([straight])[0])}
            yield replace(straight, switch=replace(straight.switch, step=step, order=then)), moved
        if arguments.ulps is not None:
            straight = arithmetic(settings, seed=seed, **{**kept, "seeds__perturb": count})
            unit = {**unit, "kind": "ulp", "ulps": arguments.ulps}
            moved = {"redrawn": (), "from_step": step, "unit": unit}
            yield replace(straight, switch=replace(straight.switch, step=step, ulps=arguments.ulps)), moved


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


def parser_of(prog: str, doc: str | None) -> Parser:
    """Return the parser of a command of this package, with the text of its module as help."""
    text = str(doc).replace("``", "")
    return Parser(prog=prog, description=text)


def parser() -> Parser:
    """Return the command's arguments."""
    parser = parser_of("grok branch", __doc__)
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
    parser.add_argument(
        "overrides", nargs="*", metavar="NAME=VALUE", help="settings of the parents and children, as for `grok run`"
    )
    return parser


def planned(argv: Sequence[str]) -> Designed[ArithmeticConfig]:
    """Choose parents, print the plan and return their children, with their design.

    Raises:
        ConfigError, StoreError: the arguments are wrong, or the store has no such parents.
    """
    arguments = parser().parse_intermixed_args(argv)
    for word in arguments.overrides:
        if word.startswith(("seed=", "seeds.", "switch.", "store.path=")):
            raise ConfigError(
                f"{word}: the parents' streams are kept or redrawn (--redraw, --at-step), and --store names the store"
            )
    steps = steps_of(arguments)
    redraws = redraws_of(arguments.redraw or ALL_REDRAWS) if steps is None else [*(arguments.redraw or "").split()]
    settings = compose([*arguments.overrides, f"store.path={literal(arguments.store)}"])
    config = arithmetic(settings)
    store = open_store(arguments.store)
    named = arguments.parents is not None
    parents = _named(store, config, arguments.parents) if named else _chosen(store, config, arguments)
    sets = len(redraws) if steps is None else len(steps) * (len(redraws) + (arguments.ulps is not None))
    refuse_too_many_runs(len(parents) * sets * arguments.times, f"--times {arguments.times}")
    configs: list[ArithmeticConfig] = []
    purposes: list[Purpose] = []
    beside: list[tuple[str, Purpose]] = []
    ancestors = first_ancestors(store)
    stored = StoredRuns(store if arguments.reverse else None)
    for run_id, row in parents.iterrows():
        parent, seed = str(run_id), int(row["seed"])
        of_parent = Purpose(
            role="parent",
            unit={"seed": seed},
            choice=row["choice"],
            choice_detail=row["choice_detail"],
            line=ancestors.get(parent, parent),
        )
        beside.append((parent, of_parent))
        of_child = replace(of_parent, role="child", parent_run_id=parent)
        if steps is not None:
            of_row = switched(row, settings, steps, arguments, stored)
            for child, moved in of_row:
                configs.append(child)
                purposes.append(replace(of_child, **moved))
            continue
        for child, redrawn, count in children(row, settings, redraws, arguments.times):
            configs.append(child)
            unit = {"seed": seed, "repeat": count}
            purposes.append(replace(of_child, unit=unit, redrawn=tuple(redrawn.split("+"))))
    print(
        f"parents: {len(parents)} (seeds {', '.join(str(seed) for seed in parents['seed'])}), "
        f"redraws: {sets}, times: {arguments.times}, children: {len(configs)}"
    )
    return Designed(configs, Purposes("branch", purposes, beside))


def _named(store: Store, config: ArithmeticConfig, names: str) -> pd.DataFrame:
    """Return the runs of ``--parents``.

    Raises:
        ConfigError: one has other settings than the command.
    """
    rows = [store.run(name) for name in names.split(",")]
    (run,) = prepare_runs([config])
    for row in rows:
        if row["config_id"] != run.identity.config_id:
            raise ConfigError(f"--parents: run {row['run_id']} has other settings than this command")
    parents = pd.DataFrame(rows).set_index("run_id")
    return parents.assign(choice="named", choice_detail=None)


def _chosen(store: Store, config: ArithmeticConfig, arguments: argparse.Namespace) -> pd.DataFrame:
    """Return the runs that ``--best`` and ``--random`` choose.

    Raises:
        ConfigError: there are too few candidates.
    """
    best, random, seeds = arguments.best, arguments.random, arguments.seeds
    conditions = Conditions.of(store, config)
    runs = candidates(conditions, seeds_of(seeds))
    if len(runs) < max(1, best + random):
        why = _why_so_few(conditions)
        raise ConfigError(
            f"--best {best} --random {random}: {arguments.store} has {len(runs)} finished seeds with these settings"
            f"{why}; train more, or ask for fewer"
        )
    return choose(store, runs, best=best, random=random, at=arguments.at, among={"seeds": seeds} if seeds else None)


@command(interrupted=GO_ON)
def main(argv: list[str]) -> int:
    """Choose parents and train their children."""
    return execute(planned(argv), argv=["python", "-m", "grok.sweeps.branch", *argv]).exit_status


if __name__ == "__main__":
    sys.exit(main())
