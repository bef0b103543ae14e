"""What plugins give and are given. Shapes: n examples, T tokens of an example, V classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from grok.errors import ConfigError

Tensor = Any
"""A ``torch.Tensor``; planning imports this module and no torch."""
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Operation:
    """A task of two operands: ``table[a, b]`` is the answer to ``a op b``; all three are numbers 0 to n - 1.

    It is trained by the same lanes as the built-in operations, on every device.
    """

    table: Integers
    """[n, n]"""

    def __post_init__(self) -> None:
        table = np.asarray(self.table)
        if table.ndim != 2 or table.shape[0] != table.shape[1] or not np.issubdtype(table.dtype, np.integer):
            raise ConfigError(f"an operation's table is {table.dtype} {table.shape}: expected whole numbers [n, n]")
        if table.min() < 0 or table.max() >= len(table):
            raise ConfigError(
                f"an operation's table of {len(table)} elements has answers from {table.min()} to {table.max()}: "
                f"expected 0 to {len(table) - 1}"
            )
        object.__setattr__(self, "table", table.astype(np.int64))


@dataclass(frozen=True, slots=True)
class Examples:
    """A task of any form: inputs and the class of each. It is trained one lane at a time, uncompiled."""

    inputs: NDArray[Any]
    """[n, T] token numbers, or [n, ...] floats."""
    answers: Integers
    """[n], each 0 to ``classes`` - 1."""
    vocab_size: int = 0
    """Number of tokens; 0: one more than the largest. Without meaning for floats."""
    classes: int = 0
    """Number of classes; 0: one more than the largest answer."""

    def __post_init__(self) -> None:
        inputs, answers = np.asarray(self.inputs), np.asarray(self.answers)
        if answers.ndim != 1 or inputs.ndim < 2 or len(inputs) != len(answers) or len(answers) < 2:
            raise ConfigError(
                f"examples have inputs {inputs.shape} and answers {answers.shape}: expected [n, T] and [n], n from 2"
            )
        if not np.issubdtype(answers.dtype, np.integer) or answers.min() < 0:
            raise ConfigError(f"examples have {answers.dtype} answers from {answers.min()}: expected classes 0, 1, ...")
        tokens = np.issubdtype(inputs.dtype, np.integer)
        if tokens and inputs.min() < 0:
            raise ConfigError(f"examples have token {inputs.min()}: expected whole numbers from 0, or floats")
        largest = int(inputs.max()) + 1 if tokens else 0
        object.__setattr__(self, "inputs", inputs.astype(np.int64 if tokens else np.float32))
        object.__setattr__(self, "answers", answers.astype(np.int64))
        for name, least in (("vocab_size", largest), ("classes", int(answers.max()) + 1)):
            if 0 < getattr(self, name) < least:
                raise ConfigError(f"examples say {name}={getattr(self, name)} and need {least}")
            object.__setattr__(self, name, max(getattr(self, name), least))

    def __len__(self) -> int:
        return len(self.answers)

    def take(self, index: Integers) -> Examples:
        """Return the examples at ``index``."""
        return Examples(self.inputs[index], self.answers[index], self.vocab_size, self.classes)


@dataclass(frozen=True, slots=True)
class Moment:
    """What a metric is given at an evaluation. It may look at everything and change nothing."""

    step: int
    parameters: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    """Of the step's mini-batch, before any intervention."""
    train_set: Any
    val_set: Any
    """Both are :class:`Examples`, or the equations of a task of two operands (``a``, ``b``, ``answer``)."""
    logits: Callable[[Any], Tensor]
    """Logits [n, V] of a set."""
    classes: Callable[[Any], Tensor]
    """Right classes [n] of a set, as places in the logits."""


class RunSink(Protocol):
    """A log beside the store, of one run. Its class is called with the run's ``run_id`` and its settings by name.

    It is closed when the run has ended. What it raises is said once, and no more runs go there.
    """

    def write(self, values: dict[str, float], step: int) -> None:
        """Take the numbers of an evaluation (of a language model: of a step, too) by name."""
        ...

    def finish(self, result: Any) -> None:
        """Take how the run ended: ``result.status``, ``result.stop_reason`` and ``result.steps``."""
        ...

    def close(self) -> None: ...
