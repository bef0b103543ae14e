"""All equations of a task, and which of them train: a pure function of the split seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from grok.arithmetic.operations import Integers, answers, right_operands
from grok.config.arithmetic import TaskConfig
from grok.streams import Stream


@dataclass(frozen=True, slots=True)
class Equations:
    """Left operands, right operands and answers; three arrays of one length."""

    a: Integers
    b: Integers
    answer: Integers

    def __len__(self) -> int:
        return len(self.a)

    def take(self, index: Integers) -> Equations:
        """Return the equations at ``index``."""
        return Equations(self.a[index], self.b[index], self.answer[index])


def all_equations(task: TaskConfig) -> Equations:
    """Return the whole table, ordered by left, then right operand."""
    n = task.modulus
    right = np.array(right_operands(task.operation, n), dtype=np.int64)
    a = np.repeat(np.arange(n, dtype=np.int64), len(right))
    b = np.tile(right, n)
    return Equations(a, b, answers(task.operation, a, b, n))


def split(task: TaskConfig, seed: int) -> tuple[Equations, Equations]:
    """Return (training, validation) equations for a split seed.

    A random permutation's first ``int(fraction * n)`` equations train. Both sets are in
    table order: which example is in the set is the split's business, when it is seen
    the order's. Label noise replaces the answers of a random share of the training
    equations by random numbers.
    """
    table = all_equations(task)
    n_train = task.train_examples()
    stream = Stream("split", seed)
    permutation = stream.permutation(len(table))
    train, val = table.take(np.sort(permutation[:n_train])), table.take(np.sort(permutation[n_train:]))
    if task.label_noise > 0:
        noisy = stream.at("label_noise").permutation(n_train)[: round(task.label_noise * n_train)]
        train.answer[noisy] = stream.at("label_noise", "answers").integers(len(noisy), task.modulus)
    return train, val
