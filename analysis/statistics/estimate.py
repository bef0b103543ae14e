"""A number with its interval, and the error for too little data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Final

LEVEL: Final = 0.95
"""Default confidence level of intervals."""


class NotEnoughData(Exception):
    """The data are too few for an estimate; ``needs`` says what is needed."""

    def __init__(self, needs: str) -> None:
        super().__init__(f"not enough data: needs {needs}")
        self.needs = needs


@dataclass(frozen=True, slots=True)
class Estimate:
    """``value`` with its confidence interval [low, high] from ``n`` observations.

    ``high`` is infinite if censoring leaves the upper end open.
    """

    value: float
    low: float
    high: float
    n: int
    method: str
    level: float = LEVEL

    def as_json(self) -> dict[str, Any]:
        """Return a dict for JSON; an infinite end is null."""
        return {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in asdict(self).items()}

    def percent(self, digits: int | None = None) -> str:
        """Return ``"0.87% (0.55 to 1.37)"``."""
        low, high = 100 * self.low, 100 * self.high
        if digits is None:
            digits = 2 if high - low < 1 else 1 if high - low < 10 else 0
        return f"{100 * self.value:.{digits}f}% ({low:.{digits}f} to {high:.{digits}f})"

    def plain(self, digits: int = 0) -> str:
        """Return ``"4,120 (3,900 to 4,400)"``."""
        high = f"to {self.high:,.{digits}f}" if math.isfinite(self.high) else "and above"
        return f"{self.value:,.{digits}f} ({self.low:,.{digits}f} {high})"
