"""The contracts of plugins: their results and their arguments. n examples, T tokens of an example, V classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from grok.errors import ConfigError

Tensor = Any
"""A ``torch.Tensor``; typed as Any, because planning imports this module without torch."""
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Operation:
    """A task of two operands: ``table[a, b]`` is the answer to ``a op b``; all three are numbers 0 to n - 1.

    The lanes of the built-in operations train it, on every device.

    Raises:
        ConfigError: the table is not square, not of integers, or has an answer outside 0 to n - 1.
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
    """A task of any form: inputs and the class of each. It is trained one lane at a time, uncompiled.

    Raises:
        ConfigError: the shapes or types do not fit.
    """

    inputs: NDArray[Any]
    """[n, T] token numbers, or [n, ...] floats."""
    answers: Integers
    """[n], each 0 to ``classes`` - 1."""
    vocab_size: int = 0
    """Number of tokens; 0: one more than the largest. Unused for floats."""
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
                raise ConfigError(f"examples have {name}={getattr(self, name)}: expected at least {least}")
            object.__setattr__(self, name, max(getattr(self, name), least))

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def answer(self) -> Integers:
        """``answers``, under the name that it has in an operation's equations: for metrics that serve both."""
        return self.answers

    def take(self, index: Integers) -> Examples:
        """Return the examples at ``index``."""
        return Examples(self.inputs[index], self.answers[index], self.vocab_size, self.classes)


@dataclass(frozen=True, slots=True)
class Moment:
    """The argument of a metric at an evaluation. Its tensors and arrays are copies: a metric may change them."""

    step: int
    parameters: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    """Gradients of the step's mini-batch, before any intervention."""
    train_set: Any
    val_set: Any
    """Both are :class:`Examples`, or the equations of a task of two operands (``a``, ``b``, ``answers``).

    Their fields are numpy arrays on the CPU.
    """
    logits: Callable[[Any], Tensor]
    """Returns the logits [n, V] of a set."""
    classes: Callable[[Any], Tensor]
    """Returns the right classes [n] of a set, as indices of the logits."""


class RunSink(Protocol):
    """A log of one run beside the store. Its class is called with the run's ``run_id`` and its settings by name.

    An exception in a method is reported once; then no further run is logged.
    """

    def write(self, values: dict[str, float], step: int) -> None:
        """Log the numbers of an evaluation by name; of a language model also those of a step."""
        ...

    def finish(self, result: Any) -> None:
        """Log the end of the run: ``result.status``, ``result.stop_reason`` and ``result.steps``."""
        ...

    def close(self) -> None:
        """Close the log after the run's end."""
        ...
