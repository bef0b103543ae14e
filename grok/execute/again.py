"""Trains a stored run once more, stores nothing, and compares the bits with the stored ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from grok.config import GptConfig, RunConfig, identify
from grok.config.common import SinksConfig
from grok.config.fields import check, settings_of
from grok.config.gpt import LogConfig
from grok.errors import ConfigError, DataError, StoreError, TrainingError
from grok.execute.groups import PlannedRun, data_hash, prepare_runs, with_setting
from grok.execute.plan import visible_gpus
from grok.execute.refusals import refuse_missing_device, refuse_unusable_data
from grok.execute.resume import named_checkpoint
from grok.execute.worker import prepare_process, train
from grok.plugins import TARGET
from grok.records import Checkpoint, Job, RunResult, tag_parts, tags_of
from grok.store import Provenance, Row, Store
from grok.store.provenance import git_state, stored_config
from grok.store.rows import FACTS, MEASUREMENTS, Conflict, Trace, difference, to_shard, traces

WHERE: Final = (
    "data.path",
    "data.corpora",
    "plugin_path",
    "device",
    "numerics.path",
    "numerics.compile",
    "numerics.kernels",
    "numerics.auto_fallback",
    "train.threads",
)
"""Settings that may be given anew: where the data is, and how the numbers are computed."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A stored run, prepared to be trained again."""

    run_id: str
    planned: PlannedRun
    """Under the engine's name for it: an abandoned branch is trained as a part of its run."""
    row: Mapping[str, Any]
    trace: Trace
    notes: tuple[str, ...]
    """What makes other bits likely, in words."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """What training a stored run again showed."""

    run_id: str
    stored_tag: str
    tag: str
    evaluations: int
    """Evaluations that both have."""
    hashed: bool
    """Whether both have a hash of their final weights."""
    first_difference: str | None
    """None: every compared bit is the same."""

    @property
    def same(self) -> bool:
        return self.first_difference is None


def find_stored(store: Store, prefix: str, changes: Mapping[str, Any]) -> StoredRun:
    """Return the run whose run_id begins with ``prefix``, ready to be trained again.

    Args:
        changes: settings of :data:`WHERE` that replace the stored ones.

    Raises:
        StoreError: no run or several begin so, or the run has nothing to compare with.
        ConfigError, DataError, CheckpointError: no GPU here, no corpus, or no checkpoint to go on from.
    """
    run_id = str(store.run(prefix)["run_id"])
    row = store.table("runs", [run_id], None).to_pylist()[0]
    if row["status"] == "failed":
        raise StoreError(
            f"run {run_id} failed ({row['error']}), so there are no bits to compare: give its command again with "
            "retry_failed=true"
        )
    own = {name: value for name, value in changes.items() if name.endswith(f".{TARGET}")}  # code that is named again
    changes = {name: value for name, value in changes.items() if name not in own}
    settings = stored_config(row, {str(target) for target in own.values()})
    config = _without_files(_pinned(settings, row, changes), store)
    if isinstance(config, GptConfig):
        _refuse_other_data(config, row)
        refuse_unusable_data([config])
    (named,) = prepare_runs([config])
    refuse_missing_device(config, [config])
    identity = identify(config, row["data_hash"], named.code)
    # an abandoned branch comes out of its run's training, under a name of its own
    name = str(row["parent_run_id"]) if row["status"] == "rolled_back" else run_id
    planned = PlannedRun(config, replace(identity, run_id=name), row["data_hash"], named.code)
    curves = store.table("curves", [run_id], list(MEASUREMENTS))
    trace = traces(pa.Table.from_pylist([{fact: row[fact] for fact in FACTS}]), curves)[run_id]
    return StoredRun(run_id, planned, row, trace, tuple(_notes(row, identity.run_id == name, named.code)))


def train_again(stored: StoredRun) -> Repetition:
    """Train ``stored`` from its first step in this process and compare; nothing is written.

    Raises:
        GrokError: the run cannot be trained here.
    """
    row = stored.row
    result = _result(stored)
    rows = [Row(result, stored.planned.config, stored.planned.identity, Provenance.collect(), row["data_hash"])]
    shard = to_shard(rows)
    old, new = stored.trace, traces(shard.runs, shard.curves)[stored.run_id]
    # whatever the numerics: a store compares only what must be equal
    both = [replace(trace, trajectory_id="", numerics=None) for trace in (old, new)]
    conflict = difference(*(replace(t, status="abandoned") if t.status == "rolled_back" else t for t in both))
    return Repetition(
        run_id=stored.run_id,
        stored_tag=str(row["numerics"]),
        tag=result.numerics,
        evaluations=len(np.intersect1d(old.at, new.at)),
        hashed=None not in (old.weights_hash, new.weights_hash),
        first_difference=None if conflict is None else _in_words(conflict),
    )


def _result(stored: StoredRun) -> RunResult:
    """Train, and return the first result under the stored run's name."""
    run = stored.planned
    device = prepare_process([run.config], run.config.device, slot=0)
    parent = named_checkpoint(run.config, run.config.store.path)
    kept = KeptInMemory() if run.config.coupled_schedule() else None
    jobs = [Job(run_id=run.run_id, config=run.config, resume=parent, kept=kept)]
    lanes = stored.row["lane_width"] if device == "cuda" else None
    for event in train(jobs, lanes=lanes, device=device, stop=lambda: False):
        if isinstance(event, Checkpoint) and kept is not None:
            kept[event.step] = event
        elif isinstance(event, RunResult) and event.run_id == stored.run_id:
            return event
    raise TrainingError(
        f"training run {run.run_id} again did not come to {stored.run_id}: nothing was rolled back this time"
    )


class KeptInMemory(dict[int, Checkpoint]):
    """Checkpoints by their step that a rollback may return to, of a run that writes none."""

    def steps(self) -> list[int]:
        """Return their steps."""
        return list(self)

    def load(self, step: int) -> Checkpoint:
        """Return that of ``step``."""
        return self[step]


def _in_words(conflict: Conflict) -> str:
    where = "" if conflict.step is None else f" at step {conflict.step:,}"
    return f"{conflict.what}{where}: {conflict.value!r} stored, {conflict.other_value!r} now"


def _pinned(config: RunConfig, row: Mapping[str, Any], changes: Mapping[str, Any]) -> RunConfig:
    """Return ``config`` with what was left to the machine set as the numerics tag says that it was, and ``changes``.

    Raises:
        ConfigError: ``changes`` has another setting than :data:`WHERE`, or a value that is none; no GPU is here.
    """
    parts = tag_parts(row["numerics"])
    settings: dict[str, Any] = {"device": row["device"], "numerics.kernels": parts.get("kernels", "compiled")}
    if row["device"] == "cpu" and "compiled" in parts:
        settings["numerics.compile"] = parts["compiled"] != "no"
        settings["numerics.path"] = "onednn" if parts.get("products", "").startswith("onednn") else "plain"
    if config.mode == "gpt" and parts.get("threads", "").isdigit():
        settings["train.threads"] = int(parts["threads"])
    names = settings_of(type(config))
    for name, value in changes.items():
        if isinstance(config, GptConfig) and name.startswith("data.corpora."):  # one of several has moved
            corpora = settings.setdefault("data.corpora", dict(config.data.corpora))
            corpora[name.removeprefix("data.corpora.")] = str(value)
            continue
        if name not in WHERE or name not in names:
            known = ", ".join([*(known for known in WHERE if known in names), f"SETTING.{TARGET} for its own code"])
            raise ConfigError(
                f"{name}={value} cannot be given with --again, which keeps a run's settings: expected one of {known}"
            )
        hint, rule = names[name]
        settings[name] = check(name, value, hint, rule)
    if settings["device"] == "cuda" and not visible_gpus():
        raise ConfigError(
            f"device=cuda: there is no GPU here, and run {row['run_id']} was computed by {row['numerics']}; "
            "device=cpu trains it here"
        )
    for name, value in settings.items():
        config = with_setting(config, name, value)
    return config


def _without_files(config: RunConfig, store: Store) -> RunConfig:
    """Return ``config`` so that its training writes no file: no checkpoints, no weights, no sinks."""
    config = replace(
        config,
        save="none",
        checkpoint=replace(config.checkpoint, every=0, minutes=0.0, keep=False),
        numerics=replace(config.numerics, strict=False),
        store=replace(config.store, path=str(store.layout.root)),
        log=LogConfig(quiet=True) if isinstance(config, GptConfig) else SinksConfig(),
    )
    if isinstance(config, GptConfig):
        config = replace(
            config, eval=replace(config.eval, sample_tokens=0, tasks=[]), train=replace(config.train, hours=None)
        )
    return config


def _refuse_other_data(config: GptConfig, row: Mapping[str, Any]) -> None:
    """Refuse a corpus that is not there, or not the one that the run was trained on.

    Raises:
        DataError: one of both.
    """
    try:
        here = data_hash(config)
    except DataError as error:
        here = f"no corpus ({error})"
    if here != row["data_hash"]:
        raise DataError(
            f"run {row['run_id']} was trained on the corpus with the hash {row['data_hash']}, and {config.data.path} "
            f"has {here}: give data.path=DIR"
        )


def _notes(row: Mapping[str, Any], same_name: bool, code: Mapping[str, str] | None) -> Iterator[str]:
    """Yield what the reader of the verdict should know."""
    before: Mapping[str, str] = json.loads(row["own_code"] or "{}")
    changed = [
        f"{target} ({before.get(target)} then, {now} now)"
        for target, now in (code or {}).items()
        if before.get(target) != now
    ]
    if changed:
        yield f"code of your own has changed since: {', '.join(changed)}"
    elif not same_name:
        yield (
            "these settings have another run_id today: the run was stored by a version whose settings or numbers differ"
        )
    if len(tags_of(row["numerics"])) > 1:
        yield "the stored run went on under other numerics than it began with, which no single process repeats"
    if row["stop_reason"] not in ("steps", None):
        yield f"the stored run ended early ({row['stop_reason']}), after {row['steps']:,} steps"
    commit, dirty = git_state()
    if row["git_commit"] and commit and row["git_commit"] != commit:
        yield f"stored by commit {row['git_commit'][:12]}, this is {commit[:12]}"
    if row["git_dirty"] or dirty:
        yield f"the code has changes that are not committed ({'then' if row['git_dirty'] else 'now'})"
