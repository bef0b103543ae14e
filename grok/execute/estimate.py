"""Rough estimates before the first step: the time of a plan, the memory of a worker. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import median_low
from typing import Final

from grok.config import ArithmeticConfig
from grok.execute.groups import PlannedRun, program_of
from grok.store import Store

CORE_FLOPS: Final = 1.2e11
"""Operations a second of one core at small matrix products: of the order that processors of the 2020s reach."""

STEP_OVERHEAD: Final = 1.5e-3
"""Seconds of one training step that no arithmetic explains, per block of the model."""

PROCESS_BYTES: Final = 5.2e8
"""Memory of a worker before its first lane: the interpreter, torch and its compiler."""

EVALUATED_AT_ONCE: Final = 4096
"""Most examples of one of an evaluation's passes, as the engine cuts them."""


def seconds_to_train(
    runs: Sequence[PlannedRun], store: Store | None, workers: int, *, gpu: bool = False
) -> float | None:
    """Return the estimated wall time of ``runs``, or None where nothing is known.

    Runs like those that the store holds take the median time of those that such a device trained (the first of a
    worker also compiled). For others a processor's time is counted from the arithmetic of their steps; a GPU's is not
    known. On a GPU the runs of a program take the time of a full stack of lanes at least.
    """
    measured = _seconds_per_run(store, "cuda" if gpu else "cpu") if store is not None else {}
    programs: dict[str, tuple[float, float]] = {}
    names: dict[str, str] = {}
    for run in runs:
        config_id = run.identity.config_id
        seconds, stack = measured.get(config_id, (None if gpu else _counted_seconds(run), 0.0))
        if seconds is None:
            return None
        if config_id not in names:
            names[config_id] = program_of(run) if gpu else ""
        total, longest = programs.get(names[config_id], (0.0, 0.0))
        programs[names[config_id]] = total + seconds, max(longest, stack)
    total = sum(max(total, longest) if gpu else total for total, longest in programs.values())
    return total / min(workers, len(runs)) if runs else 0.0


def bytes_per_worker(runs: Sequence[PlannedRun], lanes: int) -> float:
    """Return the estimated memory of one worker with ``lanes`` runs side by side, at its peak.

    Its form is that of what a step and an evaluation keep; its constants are those with
    which it follows what ``benchmarks.seeds`` measures over models, moduli and depths.
    """
    largest = 0.0
    for config in {run.identity.config_id: run.config for run in runs}.values():
        if isinstance(config, ArithmeticConfig) and not config.task.trains_itself():
            m, d, f = config.model, config.model.d_model, config.model.d_ff or 0
            parameters = m.layers * (4 * d * d + 2 * d * f) + 2 * d * (config.task.modulus + 11)
            held = 6 * 4 * parameters  # weights, gradients, two moments, and copies at evaluations
            step = 4 * 12 * (d + f) * config.model.layers * _rows(config)
            evaluation = 4 * 30 * (d + f) * _evaluated_rows(config)
            largest = max(largest, lanes * held + max(step, evaluation))
    return PROCESS_BYTES + largest


def _seconds_per_run(store: Store, device: str) -> dict[str, tuple[float, float]]:
    """Return the median seconds of a run on ``device`` and those of a stack of its lanes, by ``config_id``.

    The seconds of a run in a stack are its part of the stack's time: with few runs each has a large part. So a stack
    takes the sum of a sweep's runs, but not more than the time of the median run in every lane.
    """
    seconds: dict[str, list[float]] = {}
    sweeps: dict[str, dict[str, float]] = {}
    lanes: dict[str, int] = {}
    columns = ["config_id", "status", "seconds", "device", "lane_width", "sweep_id"]
    for row in store.table("runs", None, columns).to_pylist():
        if row["status"] == "completed" and row["seconds"] is not None and row["device"] == device:
            name = row["config_id"]
            seconds.setdefault(name, []).append(row["seconds"])
            of = sweeps.setdefault(name, {})
            of[row["sweep_id"]] = of.get(row["sweep_id"], 0.0) + row["seconds"]
            lanes[name] = row["lane_width"] or 1
    medians = {name: median_low(values) for name, values in seconds.items()}
    return {name: (each, min(max(sweeps[name].values()), lanes[name] * each)) for name, each in medians.items()}


def _counted_seconds(run: PlannedRun) -> float | None:
    config = run.config
    if not isinstance(config, ArithmeticConfig) or config.model.plugin or config.task.is_of_another_form():
        return None
    per_row = config.model.layers * (4 * config.model.d_model**2 + 2 * config.model.d_model * (config.model.d_ff or 0))
    head = config.model.d_model * config.task.modulus
    step = 6 * (_rows(config) * per_row + config.train.batch_size * head) / CORE_FLOPS
    examples = config.task.examples() - config.task.train_examples()
    evaluation = 2 * examples * (3 * per_row + head) / CORE_FLOPS
    evaluations = config.train.steps / config.eval.every if config.eval.schedule == "every" else config.eval.points
    return config.train.steps * (step + STEP_OVERHEAD * config.model.layers) + evaluations * evaluation


def _rows(config: ArithmeticConfig) -> int:
    """Return about how many positions a block computes: few where prefixes are shared."""
    every = len(config.task.sequence.split()) * config.train.batch_size
    return every if config.model.dropout else min(every, config.task.modulus + 3 * config.train.batch_size // 2)


def _evaluated_rows(config: ArithmeticConfig) -> int:
    """Return about how many positions a block computes in one pass of an evaluation."""
    held_out = config.task.examples() - config.task.train_examples()
    examples = ceil(held_out / ceil(held_out / EVALUATED_AT_ONCE))
    if config.model.dropout:
        return len(config.task.sequence.split()) * examples
    return examples if config.model.layers == 1 else 2 * examples  # the last block: the answer's position alone
