"""What a plan says before it trains: counts, time, the user's own code, and settings that change nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from grok.config import ArithmeticConfig, identify
from grok.config.values import literal
from grok.execute.estimate import bytes_per_worker, duration, seconds_to_train
from grok.execute.plan import Plan
from grok.execute.planned import PlannedRun, value_of
from grok.execute.progress import say
from grok.execute.worker import keeps_checkpoints
from grok.plugins import label
from grok.store import Provenance, Store

MORE: Final = ("eval.metrics", "eval.tasks", "checkpoint.keep", "checkpoint.keep_every", "checkpoint.keep_steps")
"""Settings in no name of a run by which it measures or keeps more: a stored run may lack it."""


UNUSED: Final = {
    "none": ("grokfast_alpha", "grokfast_lamb", "grokfast_window"),
    "ema": ("grokfast_window",),
    "ma": ("grokfast_alpha",),
}
"""For each gradient filter the settings of filters that it does not use. They are in the names of runs all the same."""


def announce(plan: Plan, store: Store | None, provenance: Provenance, *, details: bool = False) -> None:
    """Print what a plan comes to, before it trains."""
    for line in plan_lines(plan, store, provenance, details=details):
        say(line)


def plan_lines(plan: Plan, store: Store | None, provenance: Provenance, *, details: bool = False) -> Iterator[str]:
    """Yield the plan's counts, workers and time; notes on uncommitted and own code, and on settings of no effect.

    ``details``: also the sizes of its groups, and their memory.
    """
    line = plan.summary()
    if plan.to_train:
        seconds = seconds_to_train(plan.to_train, store, plan.pool.workers, gpu=plan.pool.gpu)
        line += f"; {plan.pool}" + (f"; about {duration(seconds)}" if seconds is not None else "")
    yield line
    if plan.to_train and provenance.git_dirty:
        yield "Note: the code has changes that are not committed (git_dirty in every row); require_clean=true refuses."
    yield from own_code_lines(plan, store)
    if details and plan.to_train:
        sizes = [len(group.runs) for group in plan.groups()]
        memory = bytes_per_worker(plan.to_train, plan.pool.lanes or 1)
        spread = f"{min(sizes)} to {max(sizes)}" if min(sizes) < max(sizes) else f"{max(sizes)}"
        yield f"{len(sizes)} lane group(s) of {spread} run(s); about {memory / 1e9:.1f} GB a worker"
    yield from _without_use(plan.runs)
    yield from _not_measured(plan, store)


def own_code_lines(plan: Plan, store: Store | None) -> Iterator[str]:
    """Yield lines on the code that the runs to train name; none where they name none."""
    runs = [run for run in plan.to_train if run.code]
    named = {
        (name, label(spec), (run.code or {})[str(spec["_target_"])])
        for run in {run.identity.config_id: run for run in runs}.values()
        for name, spec in run.config.plugins().items()
    }
    for name, called, fingerprint in sorted(named):
        yield f"Your code: {name}={called} ({fingerprint})"
    configs = [run.config for run in runs if isinstance(run.config, ArithmeticConfig)]
    tables = sum(config.task.is_of_another_form() for config in configs)
    modules = sum(_is_plain(config) for config in configs) - tables
    if tables:
        yield (
            f"Plain path for {tables} run{'s' if tables > 1 else ''}: a table of your own (Examples) is trained one "
            "lane at a time, uncompiled (docs/plugins.md)"
        )
    if modules:
        yield (
            f"Plain path for {modules} run{'s' if modules > 1 else ''}: a torch module is trained one lane at a time, "
            "uncompiled; a lane model would share rows (docs/plugins.md)"
        )
    if store is not None and runs:
        yield from _changed(runs, store)


def _is_plain(config: ArithmeticConfig) -> bool:
    from grok.arithmetic.own_model import is_plain

    return is_plain(config)


def _changed(runs: list[PlannedRun], store: Store) -> Iterator[str]:
    """Yield why runs are trained although the store holds the same settings: their code was another one."""
    texts = {row["own_code"] for row in store.table("runs", None, ["own_code"]).to_pylist()} - {None}
    statuses, now = store.statuses(), {target: text for run in runs for target, text in (run.code or {}).items()}
    anew: set[str] = set()
    older: dict[str, set[str]] = {}  # stored fingerprints by target
    for before in map(json.loads, sorted(texts)):
        for run in runs:
            code = dict(run.code or {})
            differing = {target for target, text in code.items() if before.get(target, text) != text}
            known = bool(differing) and code.keys() <= before.keys()
            if known and identify(run.config, run.data_hash, before).run_id in statuses:
                anew.add(run.run_id)
                for target in differing:
                    older.setdefault(target, set()).add(before[target])
    if anew:
        changes = [f"{target} ({' or '.join(sorted(older[target]))}, now {now[target]})" for target in sorted(older)]
        yield f"{len(anew)} of them are stored with other code and train anew: changed is {', '.join(changes)}"


def _without_use(runs: Sequence[PlannedRun]) -> Iterator[str]:
    """Yield that runs differ in a setting of a gradient filter that they have not: two names, equal bits."""
    configs = [run.config for run in runs if isinstance(run.config, ArithmeticConfig)]
    for kind, names in UNUSED.items():
        optims = [config.optim for config in configs if config.optim.grokfast == kind]
        swept = [f"optim.{name}" for name in names if len({getattr(optim, name) for optim in optims}) > 1]
        if swept:
            yield (
                f"Note: runs with optim.grokfast={kind} do not use {', '.join(swept)}: "
                "those that differ in nothing else have equal bits."
            )


def _not_measured(plan: Plan, store: Store | None) -> Iterator[str]:
    """Yield that stored runs did not measure or keep what is asked for now: it is in no name of a run."""
    asks = {
        run.run_id: {name: value_of(run.config, name) for name in MORE}
        for run in plan.runs
        if run.run_id in plan.stored
    }
    if store is None or not any(any(values.values()) for values in asks.values()):
        return
    lacking: dict[str, None] = {}
    runs = set()
    for row in store.table("runs", asks, ["mode", "status", *(f"config.{name}" for name in MORE)]).to_pylist():
        for name, value in asks[row["run_id"]].items():
            has = row[f"config.{name}"]
            if name == "checkpoint.keep":
                has = keeps_checkpoints(row["mode"], row["status"], bool(has))
            if row["status"] != "failed" and not _has(has, value):
                lacking[f"{name}={literal(value)}"] = None
                runs.add(row["run_id"])
    if runs:
        yield (
            f"Note: {len(runs)} stored run{'s' if len(runs) > 1 else ''} did without {', '.join(lacking)}; "
            "add force=true to train them again as the next replicate."
        )


def _has(stored: Any, wanted: Any) -> bool:
    """Return whether a run with the setting ``stored`` has all that ``wanted`` gives."""
    if isinstance(wanted, list):
        return set(wanted) <= set(json.loads(stored or "[]"))
    if wanted is None or isinstance(wanted, bool):
        return bool(stored) or not wanted
    return wanted == 0 or (bool(stored) and wanted % int(stored) == 0)
