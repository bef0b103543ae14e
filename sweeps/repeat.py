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
         precision         all streams kept, in the precision=... of this command
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
import json
import platform
import sys
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from grok.commands.command import GO_ON, Parser, command, natural, positive
from grok.commands.compose import apply, arithmetic, compose, values_of
from grok.config import ArithmeticConfig, RunConfig, load_config
from grok.config.common import refuse_too_many_runs
from grok.config.fields import walk
from grok.config.values import literal
from grok.errors import ConfigError
from grok.execute import Designed, execute
from grok.execute.groups import own_code, prepare_runs
from grok.execute.plan import first_ancestors
from grok.plugins import fingerprints, target_of
from grok.store import Purpose, Purposes, Store, open_store
from grok.store.provenance import stored_config
from grok.streams import Stream
from grok.sweeps.branch import NO_MEMBERS, are_masters, parser_of, population

REDRAWABLE: Final = ("split", "init", "order")
COMPUTED: Final = ("ulp", "again", "path", "float64", "precision")
MANY: Final = "ulp"
"""The kind of ``COMPUTED`` with a random draw, which can be repeated several times."""
FIRST_MACHINE: Final = 1000
"""First ``replicate`` of runs that are repeated on another machine or path."""


@dataclass(frozen=True)
class Choice:
    """The runs to repeat."""

    candidates: pd.DataFrame
    controls: pd.DataFrame

    @property
    def rows(self) -> pd.DataFrame:
        return pd.concat([self.candidates, self.controls])


def eligible(
    store: Store,
    only: dict[str, Any],
    scan: str | None,
    every: bool = False,
    code: Mapping[str, str] | None = None,
    own: Collection[str] = (),
) -> pd.DataFrame:
    """Return the finished runs to choose candidates from: unperturbed, unswitched, of the condition with most runs.

    The best run comes first: by the step of generalisation, then by validation accuracy at the end. The column
    ``member`` says which runs are of the :func:`grok.sweeps.branch.population`; the others can only be named.

    Args:
        only: values of settings that the runs must have.
        scan: only runs that differ in the seed of this stream alone.
        every: without ``scan``, whether all runs count; False: only runs of master seeds, if there are any.
        code: fingerprints of the user's own code by import path; runs of other code do not count.
        own: import paths of the user's own code that the command names.

    Raises:
        ConfigError: there are none.
    """
    runs = store.runs()
    runs = runs[(runs["mode"] == "arithmetic") & (runs["status"] == "completed") & (runs["layers"] == "{}")]
    runs = runs[
        (runs["config.perturb.ulps"].fillna(0) == 0) & ~runs["config.eval.couple_order"].fillna(False).astype(bool)
    ]
    runs = runs[runs["config.switch.step"].isna()]  # a run that changes on its way is another run's child
    for name, value in only.items():
        runs = runs[[_equal(stored, value) for stored in runs[f"config.{name}"]]]
    if runs.empty:
        settings = " ".join(f"{name}={value}" for name, value in only.items())
        raise ConfigError(
            f"{store.layout.root} has no finished run to choose from{f' with {settings}' if settings else ''}: train a "
            "census first, grok sweep sweep=census"
        )
    if code:
        of_this_code = [_has_code(text, code) for text in runs["own_code"]]
        if not any(of_this_code):
            words = ", ".join(f"{path} ({version})" for path, version in code.items())
            raise ConfigError(
                f"{store.layout.root} has no run of {words}: its {len(runs)} runs were trained with other code under "
                "the same name; train a census with this code first, or bring the earlier code back"
            )
        runs = runs[of_this_code]
    usual = runs["config_id"].value_counts().index[0]
    (row,) = store.table("runs", [runs["run_id"][runs["config_id"] == usual].iloc[0]], None).to_pylist()
    lengths = runs["config.train.steps"].unique()
    (run,) = prepare_runs([stored_config(row, own)])
    of_any_length = {usual, *(run.under("train.steps", int(n)).identity.config_id for n in lengths)}
    runs = runs[runs["config_id"].isin(of_any_length)]
    if scan is not None:
        cell = runs.groupby([f"seed_{s}" for s in REDRAWABLE if s != scan], sort=True).ngroup()
        runs = runs[cell == cell[runs["config_id"] == usual].value_counts().index[0]]
    elif not every:
        masters = are_masters(runs)
        runs = runs[masters] if masters[runs["config_id"] == usual].any() else runs
    runs = runs.assign(member=runs["run_id"].isin(population(store, runs)))
    runs = runs[runs["config_id"] == usual]
    by = ["member", "replicate", "run_id"]
    runs = runs.sort_values(by, ascending=[False, True, True]).drop_duplicates("trajectory_id")
    by = ["grokked_step", "val_acc", "val_loss", "run_id"]
    best_first: pd.DataFrame = runs.sort_values(by, ascending=[True, False, True, True], na_position="last")
    return best_first.set_index("run_id")


def _has_code(text: object, code: Mapping[str, str]) -> bool:
    stored = json.loads(text) if isinstance(text, str) else {}
    return all(stored.get(path) == version for path, version in code.items())


def _equal(stored: Any, value: Any) -> bool:
    if isinstance(value, list | dict):
        return bool(json.loads(stored) == value)
    return bool(pd.isna(stored)) if value is None else bool(stored == value)


def choose(
    store: Store,
    runs: pd.DataFrame,
    *,
    best: int,
    names: Sequence[str],
    controls: int | None,
    above: float | None = None,
) -> Choice:
    """Return candidates among ``runs``, and controls among the others.

    Candidates are the runs of ``names`` (master seeds or beginnings of run_ids), or of the members of the population
    those with a final validation accuracy above ``above``, or the ``best``. Controls are drawn from the members, of
    master seeds if there are any.

    Raises:
        ConfigError: a name is no run of ``runs``, or there are too few runs.
    """
    masters = are_masters(runs)
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
        candidates = members.head(best) if above is None else members[members["val_acc"] > above]
    others = ordinary.drop(index=candidates.index, errors="ignore").sort_index()
    wanted = min(len(candidates), len(others)) if controls is None else controls
    if (not names and above is None and len(members) < best) or len(others) < wanted:
        further = len(runs) - len(members)
        more = f" ({further} more {NO_MEMBERS})" if further else ""
        raise ConfigError(f"the store has {len(members)} runs to choose from{more}: ask for fewer (--best, --controls)")
    if candidates.empty:
        return Choice(candidates, others.head(0))
    drawn = Stream("sweep", 0).at("repeat", "controls", str(candidates.index[0])).permutation(len(others))[:wanted]
    return Choice(candidates, others.iloc[np.sort(drawn)])


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
    row: Mapping[str, Any],
    how: ArithmeticConfig,
    kinds: Sequence[str],
    times: int,
    known: Mapping[tuple[str, str], int] | None = None,
) -> Iterator[tuple[RunConfig, str, int]]:
    """Yield the configs that repeat a stored run, with the numerics and the store of ``how``: each with kind and count.

    ``row`` has plain values by column of ``runs``; ``known`` are stored repeats (`other_paths`).
    Redrawn seeds are a function of the run, the streams and the count. So the same command gives the same
    repeats, and two candidates have no repeat in common.
    """
    named = {target_of(spec) for spec in how.plugins().values()}
    stored = {name: value for name, value, _ in walk(stored_config(row, named))}
    plain = {
        name: stored[name] if rule.role != "none" or name.startswith("seed") else value
        for name, value, rule in walk(how)
    }
    address = int(str(row["trajectory_id"])[:15], 16)
    for kind in kinds:
        for count in range(1 if "=" in kind or (kind in COMPUTED and kind != MANY) else times):
            changed = dict(plain)
            if kind == "ulp":
                changed |= {"perturb.ulps": 1, "seeds.perturb": count}
            elif kind == "again":
                changed["replicate"] = FIRST_MACHINE + _machine(how)
            elif kind == "path":
                changed["numerics.path"] = "plain" if "products=onednn" in str(row["numerics"]) else "onednn"
                stored_one = (known or {}).get((str(row["trajectory_id"]), changed["numerics.path"]))
                changed["replicate"] = stored_one or FIRST_MACHINE + _machine(how, changed["numerics.path"])
            elif "=" in kind:
                changed |= values_of([kind])
            elif kind == "float64":
                changed["precision"] = "float64"
            elif kind == "precision":
                changed["precision"] = how.precision
            else:
                fresh = Stream("sweep", address).at("repeat", kind, count)
                changed |= {f"seeds.{s}": int(fresh.at(s).integers(1, 2**31)[0]) for s in kind.split("+")}
            yield load_config(apply({}, changed)), kind, count


def _machine(how: ArithmeticConfig, path: str | None = None) -> int:
    about = (platform.node(), how.device, how.lanes, path or how.numerics.path, how.numerics.compile)
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
        streams = kind.split("+")
        redraw = set(streams) <= set(REDRAWABLE) and len(set(streams)) == len(streams) <= 2
        if kind not in COMPUTED and not redraw and "=" not in kind:
            raise ConfigError(
                f"--kinds {text}: {kind!r} is not one of {', '.join(COMPUTED)}, nor one or two of split, init, order "
                "joined by +, nor NAME=VALUE"
            )
    return kinds


def parser() -> Parser:
    """Return the command's arguments."""
    parser = parser_of("grok repeat", __doc__)
    parser.add_argument("--store", help="the store that has the candidates and gets the repeats (or store.path=)")
    parser.add_argument("--best", type=positive, default=12, help="candidates: this many of the best runs (default 12)")
    parser.add_argument("--seeds", help="candidates by name: master seeds or beginnings of run_ids, with commas")
    parser.add_argument("--above", type=float, help="candidates: all that ended above this validation accuracy")
    parser.add_argument("--scan", choices=REDRAWABLE, help="choose among runs that differ only in this stream")
    parser.add_argument("--controls", type=natural, help="ordinary controls (default: as many as candidates)")
    parser.add_argument("--kinds", default="ulp", help="ways to repeat, with commas (default ulp)")
    parser.add_argument("--times", type=positive, default=8, help="repeats of each kind (default 8)")
    parser.add_argument("overrides", nargs="*", metavar="NAME=VALUE", help="settings, as for `grok run`")
    return parser


def in_words(runs: pd.DataFrame, scan: str | None = None) -> str:
    """Return the seeds that tell ``runs`` apart: of their masters, or of the streams drawn under one master."""
    one_master = len(runs) > 1 and runs["seed"].nunique() == 1
    drawn = [s for s in REDRAWABLE if runs[f"seed_{s}"].nunique() > 1] if one_master else []
    streams = [scan] if scan else drawn
    if not streams:
        return f"seeds {', '.join(map(str, runs['seed']))}"
    named = ("×".join(str(row[f"seed_{s}"]) for s in streams) for _, row in runs.iterrows())
    return f"{'×'.join(streams)} seeds {', '.join(named)}"


def planned(argv: Sequence[str]) -> Designed[RunConfig]:
    """Choose candidates and controls, print the plan and return their repeats, with their design.

    There are none if no run is above ``--above``.

    Raises:
        ConfigError, StoreError: the arguments are wrong, or the store has no such runs.
    """
    arguments = parser().parse_intermixed_args(argv)
    for word in arguments.overrides:
        if word.startswith(("seed=", "seeds.", "perturb.", "replicate=")):
            raise ConfigError(f"{word}: --seeds names candidates, and --kinds says what a repeat changes")
    kinds = kinds_of(arguments.kinds)
    how = arithmetic(
        compose([*arguments.overrides, *([f"store.path={literal(arguments.store)}"] if arguments.store else [])])
    )
    names = {word.partition("=")[0].lstrip("+") for word in arguments.overrides}
    roles = {name: rule.role for name, _, rule in walk(how)}
    for name in (kind.partition("=")[0] for kind in kinds if "=" in kind):
        if roles.get(name, "result") == "length":
            raise ConfigError(
                f"--kinds {arguments.kinds}: {name} only makes runs longer, which go on as the same seeds: expected "
                f"grok sweep {name}=... for all seeds"
            )
        if roles.get(name) == "none" and not name.startswith("seeds."):
            raise ConfigError(
                f"--kinds {arguments.kinds}: {name} is in no name of a run, so it makes no other run: expected a "
                "setting that changes a result, or --kinds path or again for how it is computed"
            )
    if "precision" in kinds and "precision" not in names:
        raise ConfigError("--kinds precision needs the precision to repeat in, for example precision=float64")
    only = {
        name: value
        for name, value, rule in walk(how)
        if name in names and rule.role != "none" and not (name == "precision" and "precision" in kinds)
    }
    store = open_store(how.store.path)
    wanted = arguments.seeds.split(",") if arguments.seeds else []
    every = arguments.above is not None or not all(name.isdigit() for name in wanted)
    moving = {name: spec for name, spec in how.plugins().items() if name not in how.measuring_plugins()}
    code = fingerprints(own_code([how]), map(target_of, moving.values())) if moving else None
    runs = eligible(store, only, arguments.scan, every, code, [target_of(spec) for spec in how.plugins().values()])
    choice = choose(store, runs, best=arguments.best, names=wanted, controls=arguments.controls, above=arguments.above)
    of = len(runs) if wanted else int(runs["member"].sum())
    if choice.candidates.empty:
        print(f"no run of {of} ended above {arguments.above}: nothing to repeat")
        return Designed()
    rows = store.table("runs", list(choice.rows.index), None).to_pylist()
    refuse_too_many_runs(len(rows) * len(kinds) * arguments.times, f"--times {arguments.times}")
    known = other_paths(store) if "path" in kinds else {}
    configs: list[RunConfig] = []
    purposes: list[Purpose] = []
    beside = []
    for row, chosen_run in _chosen(rows, choice, arguments, of, first_ancestors(store)):
        beside.append((row["run_id"], chosen_run))
        for config, kind, count in repeats(row, how, kinds, arguments.times, known):
            configs.append(config)
            unit = {**chosen_run.unit, "kind": kind, "repeat": count, "of": chosen_run.role}
            redrawn = () if kind in COMPUTED or "=" in kind else tuple(kind.split("+"))
            child = replace(chosen_run, role="child", unit=unit, parent_run_id=row["run_id"], redrawn=redrawn)
            purposes.append(child)
    chosen = in_words(choice.candidates, arguments.scan)
    print(
        f"{len(choice.candidates)} candidates ({chosen}) of {of} runs, {len(choice.controls)} ordinary "
        f"controls; {', '.join(kinds)}: {len(configs)} repeats"
    )
    return Designed(configs, Purposes("repeat", purposes, beside))


def _chosen(
    rows: Sequence[Mapping[str, Any]],
    choice: Choice,
    arguments: argparse.Namespace,
    of: int,
    ancestors: Mapping[str, str],
) -> Iterator[tuple[Mapping[str, Any], Purpose]]:
    """Yield each candidate and control, a row of ``runs``, with what it is for: it was chosen among ``of`` runs."""
    among = {"of": of} | ({"scan": arguments.scan} if arguments.scan else {})
    if arguments.seeds:
        how: tuple[str, dict[str, Any]] = "named", {"named": arguments.seeds, **among}
    elif arguments.above is not None:
        how = "best", {"by": "val_acc", "above": arguments.above, **among}
    else:
        how = "best", {"by": "grokked_step", "best": arguments.best, **among}
    lot = "drawn", {"by": "lot", "controls": len(choice.controls), **among}
    for row in rows:
        candidate = row["run_id"] in choice.candidates.index
        chosen, detail = how if candidate else lot
        yield (
            row,
            Purpose(
                role="candidate" if candidate else "control",
                unit={"seed": row["seed"]},
                choice=chosen,
                choice_detail=detail,
                line=ancestors.get(row["run_id"], row["run_id"]),
            ),
        )


@command(interrupted=GO_ON)
def main(argv: list[str]) -> int:
    """Choose candidates and controls, and repeat them."""
    repeats_planned = planned(argv)
    if not repeats_planned:
        return 0
    return execute(repeats_planned, argv=["python", "-m", "grok.sweeps.repeat", *argv]).exit_status


if __name__ == "__main__":
    sys.exit(main())
