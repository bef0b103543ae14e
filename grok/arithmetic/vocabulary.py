"""Token numbers: 0 is end of sequence, 1 equals; then follow nine operations and the task's numbers.

The default task (modulus 223) has 234 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from grok.arithmetic.operations import MODULAR_SLOTS
from grok.config.arithmetic import PERMUTATION_OPERATIONS, TaskConfig

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
