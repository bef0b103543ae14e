"""All equations of a task, and their split into training and validation set by the split seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grok.arithmetic.operations import Integers, answers
from grok.arithmetic.vocabulary import Vocabulary
from grok.config.arithmetic import TaskConfig
from grok.config.own_task import table_of
from grok.plugins import Examples, Operation
from grok.streams import Stream


@dataclass(frozen=True, slots=True)
class Equations:
    """Left operands, right operands and answers, [n] each."""

    a: Integers
    b: Integers
    answer: Integers

    def __len__(self) -> int:
        return len(self.a)

    @property
    def answers(self) -> Integers:
        """``answer``, under the name that it has in ``Examples``: for metrics that serve both."""
        return self.answer

    def take(self, index: Integers) -> Equations:
        """Return the equations at ``index``."""
        return Equations(self.a[index], self.b[index], self.answer[index])


def all_equations(task: TaskConfig) -> Equations:
    """Return the whole table, ordered by left, then right operand."""
    n = task.modulus
    right = np.array(task.right_operands(), dtype=np.int64)
    a = np.repeat(np.arange(n, dtype=np.int64), len(right))
    b = np.tile(right, n)
    if task.plugin:
        own = table_of(task.plugin)
        assert isinstance(own, Operation)
        return Equations(a, b, own.table[a, b])
    return Equations(a, b, answers(task.operation, a, b, n))


def split(task: TaskConfig, seed: int) -> tuple[Equations, Equations]:
    """Return (training, validation) equations for a split seed.

    The first ``int(fraction * n)`` equations of a random permutation are the training set.
    Both sets are in table order: the split seed decides only which set an example is in, the
    order seed when it is seen. Label noise replaces the answers of a random share of the
    training equations by random numbers.
    """
    table = all_equations(task)
    n_train = task.train_examples()
    stream = Stream("split", seed)
    permutation = stream.permutation(len(table))
    train, val = table.take(np.sort(permutation[:n_train])), table.take(np.sort(permutation[n_train:]))
    add_label_noise(task, seed, train.answer, task.modulus)
    return train, val


def add_label_noise(task: TaskConfig, seed: int, answers: Integers, classes: int) -> None:
    """Replace the share ``task.label_noise`` of the training ``answers`` by random classes, in place."""
    if task.label_noise > 0:
        stream = Stream("split", seed)
        noisy = stream.at("label_noise").permutation(len(answers))[: round(task.label_noise * len(answers))]
        answers[noisy] = stream.at("label_noise", "answers").integers(len(noisy), classes)


def examples_of(task: TaskConfig) -> Examples | None:
    """Return the examples of the user's own task, or None if it is an operation of two numbers or built in."""
    own = table_of(task.plugin) if task.plugin else None
    return own if isinstance(own, Examples) else None


def split_examples(task: TaskConfig, table: Examples, seed: int) -> tuple[Examples, Examples]:
    """Return (training, validation) examples of the user's own task, by the same rule as :func:`split`."""
    n_train = task.train_examples()
    permutation = Stream("split", seed).permutation(len(table))
    train, val = table.take(np.sort(permutation[:n_train])), table.take(np.sort(permutation[n_train:]))
    add_label_noise(task, seed, train.answers, table.classes)
    return train, val


@dataclass(frozen=True, slots=True)
class Shapes:
    """The sizes of a model's inputs and outputs for a task."""

    vocab_size: int
    """Number of tokens; 0: inputs are floats."""
    length: int
    """Number of tokens (or floats) of an example, T."""
    classes: int
    """Number of classes, V."""

    @property
    def tokens(self) -> int:
        """Return the size of a vocabulary with all tokens and all classes."""
        return max(self.vocab_size, self.classes)


def shapes_of(task: TaskConfig) -> Shapes:
    """Return a task's shapes."""
    table = examples_of(task)
    if table is None:
        words = Vocabulary.of(task)
        return Shapes(words.size, words.length, words.size)
    return Shapes(table.vocab_size, table.inputs[0].size, table.classes)
