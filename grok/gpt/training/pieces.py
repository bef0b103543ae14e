"""How a batch is cut into pieces that are computed at once. No torch: the plan asks whether all have one shape."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from grok.config.gpt import GptConfig
from grok.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows ``start .. stop`` of a batch, computed at once: a micro-batch, or the part of it for one process."""

    number: int
    """Number of the micro-batch, which selects its dropout masks."""
    micro: slice
    """All rows of that micro-batch."""
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def pieces(rows: int, micro: int, ranks: int = 1) -> list[Piece]:
    """Return the pieces of a batch of ``rows``.

    Each piece is a micro-batch. If there are fewer micro-batches than processes (``ranks``), each micro-batch is
    divided into the least number of equal parts that gives every process a piece.
    """
    parts = 1
    while True:
        cut = []
        for number, start in enumerate(range(0, rows, micro)):
            stop = min(start + micro, rows)
            bounds = [start + (stop - start) * part // parts for part in range(parts + 1)]
            cut += [Piece(number, slice(start, stop), a, b) for a, b in pairwise(bounds) if a < b]
        if len(cut) >= min(ranks, rows):
            return cut
        parts += 1


def refuse_changing_shapes(config: GptConfig, ranks: int) -> None:
    """Refuse compilation of batches whose shape changes, with ``ranks`` processes.

    Raises:
        ConfigError: ``numerics.compile`` with pieces of several sizes, or with a ramp of the context.
    """
    train = config.train
    micro, sizes = train.micro_batch or train.batch_size, [train.batch_size, *train.batch_ramp[:2]]
    if ranks == 1:  # counted: a sweep asks for each of its runs
        changes = any(size % micro for size in sizes)
    else:
        changes = len({piece.rows for size in sizes for piece in pieces(size, micro, ranks)}) > 1
    if config.numerics.compile and (changes or train.context_ramp):
        raise ConfigError(
            f"numerics.compile=true needs batches of one shape, and train.micro_batch={micro} does not divide "
            f"{sizes}{f' among {ranks} processes' if ranks > 1 else ''}, or train.context_ramp changes the length: "
            "give a train.micro_batch that divides them, or numerics.compile=false"
        )
