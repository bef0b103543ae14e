"""The chains of ``tests.execute.random_kills``: a row of the table, and the page of their counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

KINDS: Final = ("sweep", "search", "merge", "compaction", "language model")
TABLE: Final = "random_kills.csv"
PAGE: Final = "random_kills.md"
SHARDS: Final = 16
"""Shards of one run each that are merged or compacted."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Work that was killed until it was through: one row of the table."""

    kind: str
    chain: int
    kills: int
    sigkill: int
    sigterm: int
    sigint: int
    sigusr1: int
    pairs: int
    """Of the kills, those of one of two sweeps that worked in one store."""
    starting: int
    """Of the kills, those before anything was added to the store."""
    lost: int
    """Runs stored before a kill and missing after it."""
    doubled: int
    """Runs that were there twice after a kill or at the end."""
    missing: int
    """Runs that the finished store lacks."""
    equal: bool
    """Whether the finished store equals that of undisturbed work, bit by bit."""
    seconds: float
    date: str
    commit: str
    torch: str


def sound(chains: Sequence[Chain]) -> bool:
    """Return whether nothing was lost, doubled or changed."""
    return all(c.equal and not c.lost and not c.doubled and not c.missing for c in chains)


def page(chains: Sequence[Chain]) -> str:
    """Return the counts of the table as Markdown."""
    kinds = [kind for kind in KINDS if any(c.kind == kind for c in chains)]

    def row(name: str, of: Sequence[Chain]) -> str:
        columns = (
            "kills",
            "sigkill",
            "sigterm",
            "sigint",
            "sigusr1",
            "pairs",
            "starting",
            "lost",
            "doubled",
            "missing",
        )
        numbers = [len(of), *(sum(getattr(c, column) for c in of) for column in columns)]
        return f"| {name} | " + " | ".join(map(str, [*numbers, sum(not c.equal for c in of)])) + " |"

    commits = ", ".join(dict.fromkeys(c.commit for c in chains))
    days = sorted({c.date for c in chains})
    hours = sum(c.seconds for c in chains) / 3600
    return "\n".join(
        [
            "# Every kind of work killed at random moments",
            "",
            "`python -m tests.execute.random_kills --kills 200`: "
            f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, commit {commits}, torch {chains[-1].torch}, "
            f"{hours:.1f} hours of one process. Every row: `{TABLE}`.",
            "",
            "A chain is one piece of work that is killed at a random moment (of its time, or after some changes of its "
            "files) and started again until it is through. "
            "Then its store is compared with that of undisturbed work, row by row and bit by bit, times and hosts "
            f"aside. The pieces: a sweep of 4 runs of 60 steps, a search of 3 trials with 2 seeds each, a merge of "
            f"two stores of {SHARDS} shards each, a compaction of {SHARDS} shards, a language model of 80 steps.",
            "",
            "| work | chains | kills | SIGKILL | SIGTERM | SIGINT | SIGUSR1 | of a pair | before anything was added "
            "| runs lost | runs doubled | runs missing at the end | stores that differ |",
            "|---|" + "---|" * 12,
            *(row(kind, [c for c in chains if c.kind == kind]) for kind in kinds),
            row("**all**", chains),
            "",
            "*of a pair*: the kill of one of two sweeps that worked in one store at the same time. Each piece of work "
            "is a process group of its own without a pool of workers; kills of pool workers are in `kills.md`.",
            "",
        ]
    )
