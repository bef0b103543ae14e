"""The runs of a store that ``grok branch`` and ``grok repeat`` choose from, and the plan of those that follow them.

Settings of the command that can change a result select among the store's runs. The others decide how to train.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pandas as pd

from grok.commands.command import Parser
from grok.commands.compose import apply, arithmetic, compose
from grok.config import ArithmeticConfig, RunConfig, load_config
from grok.config.fields import walk
from grok.config.values import literal
from grok.errors import ConfigError
from grok.execute import Designed
from grok.execute.groups import own_code, prepare_runs
from grok.execute.plan import first_ancestors
from grok.plugins import fingerprints, target_of
from grok.store import Purpose, Purposes, Store
from grok.store.designs import TRAINED, decided, results_known
from grok.store.provenance import stored_config
from grok.streams import RUN_STREAMS, STREAMS, Stream, derive_seed

NO_MEMBERS: Final = "were not asked for as members of a population before a result was stored"
"""Why runs are not among those to choose from."""

LENGTH: Final = "train.steps"

Row = Mapping[str, Any]
"""A row of ``runs``: plain values by column."""
Chosen = tuple[str, str, Mapping[str, Any] | None]
"""Role, choice and its detail of a run that a design is about."""


def parser_of(prog: str, doc: str | None) -> Parser:
    """Return the parser of a command of this package, with the text of its module as help, and settings as words."""
    parser = Parser(prog=prog, description=str(doc).replace("``", ""))
    parser.add_argument("overrides", nargs="*", metavar="NAME=VALUE", help="settings, as for `grok run`")
    return parser


def command_settings(arguments: argparse.Namespace, taken: tuple[str, ...], why: str) -> ArithmeticConfig:
    """Return the settings of a command with the options ``store`` and ``overrides``.

    Raises:
        ConfigError: a setting begins as one of ``taken``: ``why``; or it is no setting of arithmetic runs.
    """
    refuse_taken(arguments.overrides, taken, why)
    store = [f"store.path={literal(arguments.store)}"] if arguments.store else []
    return arithmetic(compose([*arguments.overrides, *store]))


def refuse_taken(overrides: Sequence[str], taken: tuple[str, ...], why: str) -> None:
    """Refuse settings that begin as one of ``taken``, which the command's options decide.

    Raises:
        ConfigError: there is one: ``why``.
    """
    for word in overrides:
        if word.lstrip("+").startswith(taken):
            raise ConfigError(f"{word}: {why}")


def selecting(how: ArithmeticConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings that select runs: those that are typed or not the default, and are in a name of a run."""
    typed = {word.partition("=")[0].lstrip("+") for word in overrides}
    usual = {name: value for name, value, _ in walk(ArithmeticConfig())}
    return {
        name: value
        for name, value, rule in walk(how)
        if rule.role != "none" and not name.startswith("seed") and (name in typed or value != usual[name])
    }


def eligible(
    store: Store, how: ArithmeticConfig, only: Mapping[str, Any], scan: str | None = None, every: bool = False
) -> pd.DataFrame:
    """Return the finished runs to choose from: unperturbed, unswitched, of the condition with most runs.

    The best run comes first: by the step of generalisation, then by validation accuracy at the end. The column
    ``member`` says which runs are of the :func:`population`; the others can only be named. Runs of other versions of
    the user's own code than the present one do not count.

    Args:
        only: values of settings that the runs must have.
        scan: only runs that differ in the seed of this stream alone.
        every: without ``scan``, whether all runs count; False: only runs of master seeds, if there are any.

    Raises:
        ConfigError: there are none.
    """
    runs = results = store.runs()
    runs = runs[(runs["mode"] == "arithmetic") & (runs["status"] == "completed") & (runs["layers"] == "{}")]
    runs = runs[
        (runs["config.perturb.ulps"].fillna(0) == 0) & ~runs["config.eval.couple_order"].fillna(False).astype(bool)
    ]
    runs = runs[runs["config.switch.step"].isna()]  # a run that changes on its way is another run's child
    for name in only.keys() - {LENGTH}:
        runs = runs.loc[[_equal(stored, only[name]) for stored in runs[f"config.{name}"]]]
    runs = _of_present_code(store, how, runs)
    long = runs[runs[f"config.{LENGTH}"] == only[LENGTH]] if LENGTH in only else runs
    if long.empty:
        settings = " ".join(f"{name}={value}" for name, value in only.items())
        raise ConfigError(
            f"{store.layout.root} has no finished run to choose from{f' with {settings}' if settings else ''} (no "
            "moved or switched one counts): train a census first, grok sweep sweep=census"
        )
    size = long.groupby("config_id")["grokked_step"].agg(["size", "count"])  # of equally common ones the better
    usual = size.sort_values(["size", "count"]).index[-1]
    (row,) = store.table("runs", [runs["run_id"][runs["config_id"] == usual].iloc[0]], None).to_pylist()
    lengths = runs["config.train.steps"].unique()
    (run,) = prepare_runs([stored_config(row, _named_code(how))])
    of_any_length = {usual, *(run.under("train.steps", int(n)).identity.config_id for n in lengths)}
    others = int((~runs["config_id"].isin(of_any_length)).sum())
    if others:
        print(
            f"{store.layout.root}: chosen among runs of the most frequent settings; {others:,} finished runs with "
            "others do not count (type settings to choose among those)"
        )
    runs = runs[runs["config_id"].isin(of_any_length)]
    if scan is not None:
        cell = runs.groupby([f"seed_{s}" for s in RUN_STREAMS if s != scan], sort=True).ngroup()
        runs = runs[cell == cell[runs["config_id"] == usual].value_counts().index[0]]
    elif not every:
        masters = are_masters(runs)
        runs = runs[masters] if masters[runs["config_id"] == usual].any() else runs
    runs = runs.assign(member=runs["run_id"].isin(population(store, runs, results)))
    runs = runs[runs["config_id"] == usual]
    by = ["member", "replicate", "run_id"]
    runs = runs.sort_values(by, ascending=[False, True, True]).drop_duplicates("trajectory_id")
    by = ["grokked_step", "val_acc", "val_loss", "run_id"]
    best_first: pd.DataFrame = runs.sort_values(by, ascending=[True, False, True, True], na_position="last")
    return best_first.set_index("run_id")


def _named_code(how: ArithmeticConfig) -> list[str]:
    """Return the import paths of the user's own code that the command names."""
    return [target_of(spec) for spec in how.plugins().values()]


def _of_present_code(store: Store, how: ArithmeticConfig, runs: pd.DataFrame) -> pd.DataFrame:
    moving = [target_of(spec) for name, spec in how.plugins().items() if name not in how.measuring_plugins()]
    if not moving or runs.empty:
        return runs
    code = fingerprints(own_code([how]), moving)
    stored = [json.loads(text) if isinstance(text, str) else {} for text in runs["own_code"]]
    of_this_code = [code.items() <= versions.items() for versions in stored]
    if not any(of_this_code):
        words = ", ".join(f"{path} ({version})" for path, version in code.items())
        raise ConfigError(
            f"{store.layout.root} has no run of {words}: its {len(runs)} runs were trained with other code under "
            "the same name; train a census with this code first, or bring the earlier code back"
        )
    return runs.loc[of_this_code]


def _equal(stored: Any, value: Any) -> bool:
    if isinstance(value, list | dict):
        return isinstance(stored, str) and bool(json.loads(stored) == value)
    return bool(pd.isna(stored)) if value is None else bool(stored == value)


def are_masters(runs: pd.DataFrame) -> pd.Series:
    """Return whether each run derives all streams from its master seed; a row of before a stream has none of it."""
    masters = runs["config.seeds.layers"] == "{}"
    for stream in STREAMS:
        derived = [derive_seed(int(seed), stream) for seed in runs["seed"]]
        masters &= (runs[f"seed_{stream}"] == derived) | runs[f"seed_{stream}"].isna()
    return masters


def population(store: Store, runs: pd.DataFrame, results: pd.DataFrame) -> set[str]:
    """Return which of ``runs``, all of one condition and of any length, were asked for before any result of theirs.

    Those are members of designs and cells of crossed designs, given or drawn. Runs that only extend others count if
    they extend all of them: going on with all chooses nothing.

    Args:
        results: all runs of the store; of failed ones there is no result.
    """
    designs = store.designs()
    designs["planned_at"] = decided(designs[designs["role"].isin(TRAINED)], results)
    designs = designs[designs["run_id"].isin(runs["run_id"])]
    trajectories = runs.set_index("run_id")["trajectory_id"]
    designs = designs.assign(place=designs["run_id"].map(trajectories))
    results = results[results["status"] != "failed"]
    designs["results_seen"] = results_known(designs, results.assign(place=results["trajectory_id"]))
    of_population = (designs["role"] == "member") | ((designs["role"] == "cell") & (designs["kind"] == "crossed"))
    claims = designs[of_population & designs["choice"].isin(["given", "drawn"])]
    first = set(claims["run_id"][~claims["results_seen"]])
    begun = set(trajectories[list(first)])
    for _, later in claims[claims["results_seen"]].groupby("design_id"):
        extended = trajectories[list(later["run_id"])]
        if begun <= set(extended):
            first |= set(extended.index[extended.isin(begun)])
    return first


def is_redraw(streams: Sequence[str]) -> bool:
    """Return whether these are one or two different streams that can be redrawn."""
    return set(streams) <= set(RUN_STREAMS) and len(set(streams)) == len(streams) <= 2


def redrawn_seeds(trajectory_id: str, redrawn: str, count: int, command: str = "branch") -> dict[str, int]:
    """Return the new seeds, by stream or layer, of run number ``count`` that follows a run with ``redrawn`` streams.

    They follow from the first run's trajectory: the same command gives the same runs, two runs have no follower in
    common. ``redrawn``: streams joined by ``+``, as in ``split+init``.
    """
    fresh = Stream("sweep", int(trajectory_id[:15], 16)).at(command, redrawn, count)
    return {name: int(fresh.at(name).integers(1, 2**31)[0]) for name in redrawn.split("+")}


def settings_of(row: Row, how: ArithmeticConfig) -> dict[str, Any]:
    """Return the settings of a stored run by dotted name, with the store and the way of training of ``how``."""
    stored = {name: value for name, value, _ in walk(stored_config(row, _named_code(how)))}
    return {
        name: stored[name] if rule.role != "none" or name.startswith("seed") else value
        for name, value, rule in walk(how)
    }


def config_of(settings: Mapping[str, Any]) -> RunConfig:
    """Return the config of settings by dotted name."""
    return load_config(apply({}, settings))


def planned_after(
    kind: str,
    store: Store,
    chosen: Mapping[str, Chosen],
    following: Callable[[Row, str], Iterator[tuple[RunConfig, dict[str, Any]]]],
) -> Designed[RunConfig]:
    """Return the runs that follow chosen ones, with their design.

    Args:
        kind: of the design.
        store: has the chosen runs.
        chosen: how each was chosen, by ``run_id``.
        following: yields the runs that follow one of a role, each with what its purpose says beside the first one's;
            its ``unit`` is added to that of the first run, the seed.
    """
    configs: list[RunConfig] = []
    purposes: list[Purpose] = []
    beside: list[tuple[str, Purpose]] = []
    ancestors = first_ancestors(store)
    rows = {row["run_id"]: row for row in store.table("runs", chosen, None).to_pylist()}
    for run_id, (role, choice, detail) in chosen.items():
        row, line = rows[run_id], ancestors.get(run_id, run_id)
        first = Purpose(role=role, unit={"seed": row["seed"]}, choice=choice, choice_detail=detail, line=line)
        beside.append((run_id, first))
        child = replace(first, role="child", parent_run_id=run_id)
        for config, purpose in following(row, role):
            configs.append(config)
            purposes.append(replace(child, **purpose | {"unit": {**first.unit, **purpose["unit"]}}))
    return Designed(configs, Purposes(kind, purposes, beside))
