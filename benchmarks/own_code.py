"""The cost of a user's own code: ``python -m benchmarks.own_code [--steps 40] [--uncompiled]``.

Compares a built-in operation with the same operation as a plugin, and with other plugins, each as a lane of the same
regime. All take turns in one process on one thread, in an order that rotates each round. The second of two steps is
timed, because the first finds the data of another contender in the caches. The result is the ratio of processor
seconds to the built-in operation, pair by pair, so that a busy machine affects both. The built-in operation takes part
twice: the second time is a control, whose ratio should be 1. Steps are compiled if that kind of code can be, as in a
sweep with its default settings. Prints a page in Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.harness import rotated, table
from benchmarks.settings import default_config
from grok.arithmetic.engine import seat
from grok.arithmetic.program import dropout_noise
from grok.arithmetic.run import Lane
from grok.config import ArithmeticConfig
from grok.execute.groups import prepare_runs
from grok.execute.worker import keep_freed_memory, use_large_pages
from grok.numerics import processor_model
from grok.records import Job

CODE: Final = """
import numpy as np
import torch
from grok.arithmetic.weights import parameter_shapes
from grok.arithmetic.lanes import LaneModel
from grok.arithmetic.model import Transformer
from grok.config.arithmetic import ModelConfig
from grok.plugins import Operation
from dataclasses import replace

def cross_entropy(logits, right):
    return torch.nn.functional.cross_entropy(logits, right, reduction="none")

def addition(modulus):
    return Operation((np.arange(modulus)[:, None] + np.arange(modulus)) % modulus)

class Nothing:
    def __init__(self, parameters):
        pass

    def gradients(self, step, parameters, gradients):
        return gradients

class Same(LaneModel):
    @staticmethod
    def parameter_shapes(config):
        return parameter_shapes(replace(config, model=replace(config.model, plugin={})))

class Module(Transformer):
    def __init__(self, vocab_size, length):
        super().__init__(ModelConfig(), vocab_size=vocab_size, length=length)
"""
ADDITION: Final[dict[str, Any]] = {"operation": "x+y", "sequence": "a op b ="}
MODULUS: Final = 223
CONTENDERS: Final[dict[str, dict[str, Any]]] = {
    "built-in operation": {},
    "built-in operation again": {},
    "the same as a plugin": {"task": {"plugin": {"_target_": "own.addition"}}},
    "cross-entropy as train.loss_plugin": {"train": {"loss_plugin": {"_target_": "own.cross_entropy"}}},
    "an intervention that does nothing": {"optim": {"intervention": {"_target_": "own.Nothing"}}},
    "torch's AdamW as optim.plugin": {"optim": {"plugin": {"_target_": "torch.optim.AdamW"}}},
    "a lane model (never compiled)": {"model": {"plugin": {"_target_": "own.Same"}}},
    "a torch module (plain path, never compiled)": {"model": {"plugin": {"_target_": "own.Module"}}},
}
"""What each lays over addition in the default regime."""


def config_of(over: dict[str, Any], folder: str, compiled: bool, modulus: int) -> ArithmeticConfig:
    """Return the default regime with ``over`` laid over it."""
    task = {**ADDITION, "modulus": modulus, **over.get("task", {})}
    if "plugin" in task:
        task["plugin"] = {**task["plugin"], "modulus": modulus}
    return default_config(**{**over, "task": task, "plugin_path": folder, "numerics": {"compile": compiled}})


def stepper(lane: Lane) -> Callable[[], float]:
    """Return a function that makes one update and returns its processor seconds."""

    def step() -> float:
        start = time.process_time()
        k = lane.run.step + 1
        noise = dropout_noise(lane.run.config, lane.run.streams.dropout, k)
        _, _, gradients = lane.program.gradients(lane.parameters, lane.batch(k), noise)
        lane.optimizer.update(lane.changed(gradients, k), k)
        lane.run.step = k
        return time.process_time() - start

    return step


def measure(steps: int, folder: Path, compiled: bool, modulus: int = MODULUS) -> dict[str, list[float]]:
    """Return each contender's processor seconds of ``steps`` updates, taken in turns."""
    torch.set_num_threads(1)
    keep_freed_memory()
    use_large_pages()
    (folder / "own.py").write_text(CODE)
    configs = {name: config_of(over, str(folder), compiled, modulus) for name, over in CONTENDERS.items()}
    prepare_runs(list(configs.values()))  # makes the code of all of them importable
    steppers: dict[str, Callable[[], float]] = {}
    for name, config in configs.items():
        steppers[name] = stepper(seat(Job(run_id="0", config=config), {}))
        for _ in range(3):  # the first step compiles
            steppers[name]()
    seconds: dict[str, list[float]] = {name: [] for name in steppers}
    for turn in range(steps):
        for name in rotated(list(steppers), turn):
            steppers[name]()  # not timed: the contender before it has filled the caches with its own data
            seconds[name].append(steppers[name]())
    return seconds


def page(seconds: dict[str, list[float]], compiled: bool) -> str:
    """Return the table: median milliseconds of a step, and the quartiles of the ratio, pair by pair."""
    first = next(iter(seconds.values()))
    lines = [
        f"{len(first)} rounds, one thread, {'compiled' if compiled else 'uncompiled'}, {processor_model()}, "
        f"torch {torch.__version__}. Processor time of a step.",
        "",
    ]
    rows = []
    for name, taken in seconds.items():
        low, middle, high = statistics.quantiles([b / a for a, b in zip(first, taken, strict=True)], n=4)
        rows.append((name, f"{1e3 * statistics.median(taken):.1f}", f"{middle:.2f} ({low:.2f} to {high:.2f})"))
    head = ("contender", "ms a step (median)", "times the built-in one (median, quartiles)")
    return "\n".join([*lines, *table(head, rows)[:-1]])


def main() -> int:
    """Measure, and print the page."""
    import tempfile

    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_code", description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="rounds (default 40)")
    parser.add_argument("--uncompiled", action="store_true", help="compile no step (numerics.compile=false)")
    arguments = parser.parse_args()
    if arguments.steps < 2:
        parser.error(f"--steps {arguments.steps}: quartiles need at least 2 rounds")
    with tempfile.TemporaryDirectory() as folder:
        compiled = not arguments.uncompiled
        print(page(measure(arguments.steps, Path(folder), compiled), compiled))
    return 0


if __name__ == "__main__":
    sys.exit(main())
