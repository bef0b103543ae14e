"""A task: its operation, its token numbers, the table of its equations, their split, and the order of training.

Source: Power et al. 2022, "Grokking: generalization beyond overfitting on small
algorithmic datasets", appendix A.1.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from grok.config.arithmetic import PERMUTATION_OPERATIONS, TaskConfig, table_of
from grok.plugins import Examples, Operation
from grok.streams import Stream

Integers = NDArray[np.int64]
S5: Final = tuple(itertools.permutations(range(5)))
"""The 120 permutations of five elements; a permutation's number is its place in this lexicographic list."""


def inverse(x: Integers, p: int) -> Integers:
    """Return the inverse of each ``x`` modulo the prime ``p``; 0 for 0."""
    table = np.zeros(p, dtype=np.int64)
    table[1:] = [pow(i, -1, p) for i in range(1, p)]
    return table[x]


_MODULAR: Final[dict[str, Callable[[Integers, Integers, int], Integers]]] = {
    "x+y": lambda x, y, p: x + y,
    "x-y": lambda x, y, p: x - y,
    "x*y": lambda x, y, p: x * y,
    "x/y": lambda x, y, p: x * inverse(y, p),
    "x^2+y^2": lambda x, y, p: x**2 + y**2,
    "x^2+xy+y^2": lambda x, y, p: x**2 + x * y + y**2,
    "x^2+xy+y^2+x": lambda x, y, p: x**2 + x * y + y**2 + x,
    "x^3+xy": lambda x, y, p: x**3 + x * y,
    "x^3+xy^2+y": lambda x, y, p: x**3 + x * y**2 + y,
    "x/y if y odd else x-y": lambda x, y, p: np.where(y % 2 == 1, x * inverse(y, p), x - y),
}
MODULAR_SLOTS: Final = tuple(_MODULAR)[:9]
"""The nine operations that have a token of their own (see :class:`Vocabulary`)."""


def answers(operation: str, a: Integers, b: Integers, n: int) -> Integers:
    """Return the answer of each equation ``a op b``, in ``[0, n)``; ``a``, ``b`` and the result have one shape."""
    if operation in PERMUTATION_OPERATIONS:
        return _s5_table(operation)[a, b]
    return _MODULAR[operation](a, b, n) % n


def _s5_table(operation: str) -> Integers:
    """Return the 120 × 120 table of a product; permutations act from the right: (ab)(i) = a(b(i))."""
    elements = np.array(S5)
    a, b = elements[:, None, :], elements[None, :, :]
    product = np.take_along_axis(a, b, axis=-1)
    if operation != "ab":
        product = np.take_along_axis(product, a.argsort(-1) if operation == "aba^-1" else a, axis=-1)
    places = 5 ** np.arange(4, -1, -1)  # as digits, permutations in lexicographic order are rising numbers
    return np.searchsorted(elements @ places, product @ places)


# Token numbers: 0 is end of sequence, 1 equals; then follow nine operations and the task's numbers.
#
# The default task (modulus 223) has 234 tokens.

EOS: Final = 0
EQUALS: Final = 1
FIRST_OPERATION: Final = 2
FIRST_NUMBER: Final = FIRST_OPERATION + len(MODULAR_SLOTS)


def operation_token(operation: str) -> int:
    """Return the operation's token number.

    A task has one operation, so the number only selects a row of the embedding. The parity
    mixture uses division's number and the S5 products use the first three, so that the
    vocabulary has the nine operation tokens of the diary.
    """
    if operation in MODULAR_SLOTS:
        return FIRST_OPERATION + MODULAR_SLOTS.index(operation)
    if operation in PERMUTATION_OPERATIONS:
        return FIRST_OPERATION + PERMUTATION_OPERATIONS.index(operation)
    return FIRST_OPERATION + MODULAR_SLOTS.index("x/y")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of one task and the layout of its sequence."""

    numbers: int
    """Count of the task's numbers: the modulus, or 120 in S5."""
    layout: tuple[int | str, ...]
    """For each position a token number, or ``"a"`` or ``"b"`` for an operand."""

    @classmethod
    def of(cls, task: TaskConfig) -> Vocabulary:
        """Return the vocabulary of a task, with the layout of ``task.sequence``."""
        words: dict[str, int | str] = {"eos": EOS, "=": EQUALS, "op": operation_token(task.operation)}
        return cls(task.modulus, tuple(words.get(word, word) for word in task.sequence.split()))

    @property
    def size(self) -> int:
        """V: number of tokens."""
        return FIRST_NUMBER + self.numbers

    @property
    def length(self) -> int:
        """T: positions of a sequence."""
        return len(self.layout)


# All equations of a task, and their split into training and validation set by the split seed.


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


Table = TypeVar("Table", Equations, Examples)


def split(task: TaskConfig, seed: int) -> tuple[Equations, Equations]:
    """Return (training, validation) equations for a split seed: see :func:`split_table`."""
    return split_table(task, seed, all_equations(task), task.modulus)


def split_table(task: TaskConfig, seed: int, table: Table, classes: int) -> tuple[Table, Table]:
    """Return (training, validation) examples of ``table`` for a split seed.

    The first ``int(fraction * n)`` examples of a random permutation are the training set.
    Both sets are in table order: the split seed decides only which set an example is in, the
    order seed when it is seen. Label noise replaces the answers of a random share of the
    training examples by random ``classes``.
    """
    stream, n_train = Stream("split", seed), task.train_examples()
    permutation = stream.permutation(len(table))
    train, val = table.take(np.sort(permutation[:n_train])), table.take(np.sort(permutation[n_train:]))
    if task.label_noise > 0:
        noisy = stream.at("label_noise").permutation(n_train)[: round(task.label_noise * n_train)]
        train.answer[noisy] = stream.at("label_noise", "answers").integers(len(noisy), classes)
    return train, val


def examples_of(task: TaskConfig) -> Examples | None:
    """Return the examples of the user's own task, or None if it is an operation of two numbers or built in."""
    own = table_of(task.plugin) if task.plugin else None
    return own if isinstance(own, Examples) else None


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


# The data order: the training examples of mini-batch k, a pure function of (order seed, epoch).


class BatchOrder:
    """The mini-batches of ``n`` examples in a new random order each epoch; the last one may be smaller.

    A call changes no state, so evaluation, sampling, a resume or a repeated call cannot
    change the order.
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        *,
        seed: int,
        moved: Callable[[int], int] | None = None,
        switch: tuple[int, int] | None = None,
    ) -> None:
        """Make the order of ``n`` examples.

        Args:
            n: number of training examples.
            batch_size: examples of a mini-batch.
            seed: the order seed.
            moved: reproduces the diary's bug, in which evaluations changed the data order. It returns for a step
                how often the validation loader has drawn from the shared generator until then.
            switch: (step, seed): each update after this step takes the batch that this seed gives at the update's
                step. Inside an epoch some examples come twice, then, and some not at all.
        """
        self.n = n
        self.batch_size = batch_size
        self.batches_per_epoch = -(-n // batch_size)
        self._seed = seed
        self._moved = moved
        self._switch = switch
        self._cached: tuple[tuple[int, int], Integers] | None = None

    def place(self, step: int) -> tuple[int, int]:
        """Return (order seed, epoch) of update ``step`` (counted from 1): they decide the order of the examples."""
        seed = self._seed if self._switch is None or step <= self._switch[0] else self._switch[1]
        return seed, (step - 1) // self.batches_per_epoch

    def stream(self, seed: int, epoch: int) -> Stream:
        """Return the stream whose permutation is the order of ``epoch`` (counted from 0)."""
        stream = Stream("order", seed).at(epoch)
        moved = 0 if self._moved is None else self._moved(epoch * self.batches_per_epoch)
        return stream.at("moved", moved) if moved else stream

    def epoch(self, seed: int, epoch: int) -> Integers:
        """Return the permutation of the examples in ``epoch``."""
        if self._cached is None or self._cached[0] != (seed, epoch):
            self._cached = ((seed, epoch), self.stream(seed, epoch).permutation(self.n))
        return self._cached[1]

    def batch(self, step: int) -> Integers:
        """Return the example indices of update ``step`` (counted from 1)."""
        i = (step - 1) % self.batches_per_epoch
        return self.epoch(*self.place(step))[i * self.batch_size : (i + 1) * self.batch_size]

    def padded_batch(self, step: int) -> tuple[Integers, int]:
        """Return ``batch(step)``, padded to ``batch_size`` with its first example, and its size without padding."""
        index = self.batch(step)
        size = len(index)
        if size < self.batch_size:
            index = np.concatenate([index, np.full(self.batch_size - size, index[0])])
        return index, size
