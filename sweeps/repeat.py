"""Repeats: ``grok repeat --best 12 --store STORE [settings]``.

Asks   Is being super a property of a seed, or chance in one trajectory?
How    Takes candidates from the population of a store, the seeds that were asked for before any result: the best,
       or any runs by name. Adds as many ordinary controls of the population, drawn at random. Repeats each in the
       ways of --kinds:
         ulp               all streams kept, initial weights moved by a unit in the last place
         split, init, order  that stream redrawn, the others kept (init+order: both)
         again             all streams kept, computed on this machine with this command's
                           numerics.path=..., device=..., lanes=... (path, processor, lane width)
         path              all streams kept, on the other path of matrix products (oneDNN, or torch's default)
         float64           all streams kept, in float64
         NAME=VALUE        all streams kept, one setting changed: optim.weight_decay=0.0
       Only the repeats are judged, because the candidate's own run was the reason to choose it.
Costs  (candidates + controls) x kinds x times. The plan is printed first; with dry_run=true, only the plan.
Read   The section "Is it the seed?" of the report: super again in k of n repeats, and the rate of other seeds.

Settings that can change a result (optim.weight_decay=0) select among the store's runs. Others decide how to train.

Examples:
  grok repeat --best 2 --store results/store --times 4 --kinds ulp,order
  grok repeat --seeds 100012 --store results/store --times 4 --kinds ulp,path,float64
"""

from __future__ import annotations

import argparse
import platform
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from grok.commands.command import GO_ON, Parser, command, natural, positive
from grok.commands.compose import values_of
from grok.config import ArithmeticConfig, RunConfig
from grok.config.common import refuse_too_many_runs
from grok.config.fields import walk
from grok.errors import ConfigError
from grok.execute import Designed, execute
from grok.store import Store, open_store
from grok.streams import RUN_STREAMS, Stream
from grok.sweeps import choosing
from grok.sweeps.choosing import Row, config_of, redrawn_seeds

COMPUTED: Final = ("ulp", "again", "path", "float64")
MANY: Final = "ulp"
"""The kind of ``COMPUTED`` with a random draw, which can be repeated several times."""
FIRST_MACHINE: Final = 1000
"""First ``replicate`` of runs that are repeated on another machine or path."""


def choose(
    store: Store, runs: pd.DataFrame, arguments: argparse.Namespace, names: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return candidates among ``runs``, and controls among the others.

    Candidates are the runs of ``names`` (master seeds or beginnings of run_ids), or the ``--best`` members of the
    population. Controls are drawn from the members, without a scan of master seeds if there are any.

    Raises:
        ConfigError: a name is no run of ``runs``, or there are too few runs.
    """
    best, controls = arguments.best, arguments.controls
    masters = choosing.are_masters(runs) & (arguments.scan is None)
    seeds = (runs[masters] if masters.any() else runs).sort_values("member", ascending=False, kind="stable")
    members = runs[runs["member"]]
    ordinary = seeds[seeds["member"]]
    if names:
        chosen = []
        for name in names:
            of_seed = seeds.index[seeds["seed"] == int(name)] if name.isdigit() else runs.index[:0]
            run = str(of_seed[0]) if len(of_seed) else str(store.run(name)["run_id"])
            if run not in runs.index:
                raise ConfigError(f"--seeds {name}: its run {run} is not among the {len(runs)} runs to choose from")
            chosen.append(run)
        candidates = runs.loc[list(dict.fromkeys(chosen))]
    else:
        candidates = members.head(best)
    others = ordinary.drop(index=candidates.index, errors="ignore").sort_index()
    wanted = min(len(candidates), len(others)) if controls is None else controls
    if (not names and len(members) < best) or len(others) < wanted:
        scan = f" that differ in {arguments.scan} alone" if arguments.scan else ""
        further = len(runs) - len(members)
        more = f"{scan} ({further} more {choosing.NO_MEMBERS})" if further else scan
        raise ConfigError(f"the store has {len(members)} runs to choose from{more}: ask for fewer (--best, --controls)")
    drawn = Stream("sweep", 0).at("repeat", "controls", str(candidates.index[0])).permutation(len(others))[:wanted]
    return candidates, others.iloc[np.sort(drawn)]


def other_paths(store: Store) -> dict[tuple[str, str], int]:
    """Return the ``replicate`` of each stored run that was repeated on a named path, by its trajectory and that path.

    The same command on another machine asks for these runs again and not for new ones.
    """
    runs = store.runs()
    runs = runs[(runs["mode"] == "arithmetic") & (runs["status"] == "completed") & (runs["replicate"] >= FIRST_MACHINE)]
    runs = runs.sort_values("replicate", ascending=False)
    keys = zip(runs["trajectory_id"], runs["config.numerics.path"], strict=True)
    return dict(zip(keys, runs["replicate"].astype(int), strict=True))


def repeats(
    row: Row, role: str, how: ArithmeticConfig, kinds: Sequence[str], times: int, known: Mapping[tuple[str, str], int]
) -> Iterator[tuple[RunConfig, dict[str, Any]]]:
    """Yield the configs that repeat a stored run, with the numerics and the store of ``how``.

    With each comes what its design says of it. ``role``: of the stored run; ``known``: stored repeats (`other_paths`).
    """
    own, trajectory = choosing.settings_of(row, how), str(row["trajectory_id"])
    for kind in kinds:
        for count in range(1 if "=" in kind or (kind in COMPUTED and kind != MANY) else times):
            changed: dict[str, Any] = {}
            if kind == "ulp":
                changed = {"perturb.ulps": 1, "seeds.perturb": count}
            elif kind == "again":
                changed["replicate"] = FIRST_MACHINE + _machine(how)
            elif kind == "path":
                path = "plain" if "products=onednn" in str(row["numerics"]) else "onednn"
                replicate = known.get((trajectory, path), FIRST_MACHINE + _machine(how, path))
                changed = {"numerics.path": path, "replicate": replicate}
            elif "=" in kind:
                changed = values_of([kind])
            elif kind == "float64":
                changed["precision"] = kind
            else:
                changed = {f"seeds.{s}": seed for s, seed in redrawn_seeds(trajectory, kind, count, "repeat").items()}
            redrawn = () if kind in COMPUTED or "=" in kind else tuple(kind.split("+"))
            yield config_of(own | changed), {"unit": {"kind": kind, "repeat": count, "of": role}, "redrawn": redrawn}


def _machine(how: ArithmeticConfig, path: str | None = None) -> int:
    numerics = how.numerics
    fused = [numerics.kernels] * (numerics.kernels != "compiled")  # repeats of before keep their names
    about = (platform.node(), how.device, how.lanes, path or numerics.path, numerics.compile, *fused)
    return zlib.crc32(repr(about).encode()) % 1_000_000


def kinds_of(text: str) -> list[str]:
    """Return the kinds of repeat in the text of ``--kinds``.

    Raises:
        ConfigError: a kind is unknown.

    >>> kinds_of("ulp,init+order")
    ['ulp', 'init+order']
    """
    kinds = list(dict.fromkeys(text.split(",")))
    for kind in kinds:
        if kind not in COMPUTED and not choosing.is_redraw(kind.split("+")) and "=" not in kind:
            raise ConfigError(
                f"--kinds {text}: {kind!r} is not one of {', '.join(COMPUTED)}, nor one or two of split, init, order "
                "joined by +, nor NAME=VALUE"
            )
    return kinds


def parser() -> Parser:
    """Return the command's arguments."""
    parser = choosing.parser_of("grok repeat", __doc__)
    parser.add_argument("--store", help="the store that has the candidates and gets the repeats (or store.path=)")
    parser.add_argument("--best", type=positive, default=12, help="candidates: this many of the best runs (default 12)")
    parser.add_argument("--seeds", help="candidates by name: master seeds or beginnings of run_ids, with commas")
    parser.add_argument("--scan", choices=RUN_STREAMS, help="choose among runs that differ only in this stream")
    parser.add_argument("--controls", type=natural, help="ordinary controls (default: as many as candidates)")
    parser.add_argument("--kinds", default="ulp", help="ways to repeat, with commas (default ulp)")
    parser.add_argument("--times", type=positive, default=8, help="repeats of each kind (default 8)")
    return parser


def planned(argv: Sequence[str]) -> Designed[RunConfig]:
    """Choose candidates and controls, print the plan and return their repeats, with their design.

    Raises:
        ConfigError, StoreError: the arguments are wrong, or the store has no such runs.
    """
    arguments = parser().parse_intermixed_args(argv)
    why = "--seeds names candidates, and --kinds says what a repeat changes"
    how = choosing.command_settings(arguments, ("seed=", "seeds.", "perturb.", "replicate="), why)
    kinds = kinds_of(arguments.kinds)
    roles = {name: rule.role for name, _, rule in walk(how)}
    for name in (kind.partition("=")[0] for kind in kinds if "=" in kind):
        if roles.get(name) in ("length", "none") and not name.startswith("seeds."):
            raise ConfigError(
                f"--kinds {arguments.kinds}: {name} makes no other run: expected a setting that changes a result, "
                f"--kinds path or again for how it is computed, or grok sweep {name}=... for all seeds"
            )
    only = choosing.selecting(how, arguments.overrides)
    store = open_store(how.store.path)
    wanted = arguments.seeds.split(",") if arguments.seeds else []
    every = not all(name.isdigit() for name in wanted)
    runs = choosing.eligible(store, how, only, arguments.scan, every)
    candidates, controls = choose(store, runs, arguments, wanted)
    of = len(runs) if wanted else int(runs["member"].sum())
    among = {"of": of} | ({"scan": arguments.scan} if arguments.scan else {})
    how_chosen: choosing.Chosen = "candidate", "best", {"by": "grokked_step", "best": arguments.best, **among}
    if arguments.seeds:
        how_chosen = "candidate", "named", {"named": arguments.seeds, **among}
    lot: choosing.Chosen = "control", "drawn", {"by": "lot", "controls": len(controls), **among}
    chosen = dict.fromkeys(candidates.index, how_chosen) | dict.fromkeys(controls.index, lot)
    refuse_too_many_runs(len(chosen) * len(kinds) * arguments.times, f"--times {arguments.times}")
    known = other_paths(store) if "path" in kinds else {}
    plan = choosing.planned_after(
        "repeat",
        store,
        chosen,
        lambda run, role: repeats(run, role, how, kinds, arguments.times, known),
    )
    names = candidates["seed"].astype(str) if candidates["seed"].is_unique else candidates.index.str[:10]
    print(
        f"{len(candidates)} candidates ({', '.join(names)}) of {of} runs, {len(controls)} ordinary controls; "
        f"{', '.join(kinds)}: {len(plan)} repeats"
    )
    return plan


@command(interrupted=GO_ON)
def main(argv: list[str]) -> int:
    """Choose candidates and controls, and repeat them."""
    return execute(planned(argv), argv=["python", "-m", "grok.sweeps.repeat", *argv]).exit_status


if __name__ == "__main__":
    sys.exit(main())
