"""Token numbers: end of sequence, equals, nine operations, then the numbers.

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
    """Return the operation's token.

    A table has one operation only, so the token's number means nothing but its own row
    of the embedding. The parity mixture takes division's row and the S5 products the
    first three, which keeps the vocabulary at the nine operation tokens of the diary.
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
    """How many numbers there are: the modulus, or 120 in S5."""
    layout: tuple[int | str, ...]
    """Per position a token number, or ``"a"`` / ``"b"`` for an operand."""

    @classmethod
    def of(cls, task: TaskConfig) -> Vocabulary:
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
