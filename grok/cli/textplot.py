"""Curves drawn with characters, for a terminal or a log file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Unicode's bit of each of a braille character's eight dots, by row and column."""
_BRAILLE: Final = 0x2800


@dataclass(frozen=True, slots=True)
class Line:
    """One curve; a value that is not finite is left out."""

    name: str
    steps: NDArray[np.float64]
    values: NDArray[np.float64]

    def known(self) -> Line:
        """Return the finite points."""
        finite = np.isfinite(self.values)
        return Line(self.name, self.steps[finite], self.values[finite])


def draw(
    lines: Sequence[Line],
    *,
    width: int,
    height: int,
    log: bool = False,
    limits: tuple[float, float] | None = None,
    marks: Mapping[str, int] | None = None,
    ascii_only: bool = False,
) -> list[str]:
    """Return the rows of a plot: ``height`` rows of curves beside their scale, the axis of steps, the marks.

    The last of ``lines`` is drawn over the others, in fine dots (braille); the others with a point a column.

    Args:
        width: characters of the longest row.
        log: a logarithmic scale, where all values are positive.
        limits: lowest and highest value of the scale; None: those of the curves.
        marks: one-letter names of steps, set below the axis.
        ascii_only: no character outside ASCII.
    """
    lines = [line.known() for line in lines]
    values = np.concatenate([np.array(limits or (), dtype=float), *(line.values for line in lines)])
    if not len(values):
        return ["(not measured)"]
    low, high = float(values.min()), float(values.max())
    log = log and low > 0 and high > low
    if high == low:
        around = max(0.5, 1e-3 * abs(low))
        low, high = low - around, high + around
    last = max([1.0, *(float(line.steps.max()) for line in lines if len(line.steps)), *(marks or {}).values()])
    between = np.array([high, np.sqrt(low * high) if log else (low + high) / 2, low])
    labels = [f"{value:.3g}" for value in between]
    margin = max(8, *map(len, labels))  # plots below one another stand in line
    columns = max(8, width - margin - 2)
    canvas = np.full((height, columns), " ", dtype="<U1")
    for i, line in enumerate(lines):
        heights = np.log(line.values / low) / np.log(high / low) if log else (line.values - low) / (high - low)
        if not len(heights):
            continue
        if i < len(lines) - 1 or ascii_only:
            dots = _dots(line.steps / last, heights, (height, columns))
            canvas[dots] = "*" if i == len(lines) - 1 else "." if ascii_only else "·"
        else:
            dots = _dots(line.steps / last, heights, (4 * height, 2 * columns))
            bits = sum(dots[r::4, c::2] * _DOTS[r][c] for r in range(4) for c in range(2))
            canvas = np.where(bits > 0, np.vectorize(chr)(_BRAILLE + bits), canvas)
    scale = {0: labels[0], (height - 1) // 2: labels[1], height - 1: labels[2]}
    side, corner, floor = "|+-" if ascii_only else "│└─"
    rows = [f"{scale.get(r, ''):>{margin}} {side}{''.join(canvas[r]).rstrip()}" for r in range(height)]
    rows.append(" " * (margin + 1) + corner + floor * columns)
    if marks:
        below = [" "] * columns
        for letter, step in marks.items():
            below[min(columns - 1, round(step / last * (columns - 1)))] = letter
        rows.append(" " * (margin + 2) + "".join(below).rstrip())
    end = f"{last:,.0f}"
    rows.append(f"{' ' * (margin + 2)}0{f'step {end}':>{columns - 1}}")
    return rows


def _dots(x: NDArray[np.float64], y: NDArray[np.float64], shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Return which dots of a grid the curve through (``x``, ``y``), both from 0 to 1, passes; row 0 is the top."""
    rows, columns = shape
    at = np.arange(columns) / (columns - 1)
    half = 0.5 / (columns - 1)
    inside = (at >= x.min() - half) & (at <= x.max() + half)
    level = np.rint((1 - np.interp(at, x, y)) * (rows - 1)).astype(int)
    dots = np.zeros(shape, dtype=bool)
    previous: int | None = None
    for column in np.flatnonzero(inside):
        here = int(level[column])
        first = here if previous is None else previous + int(np.sign(here - previous))
        dots[min(first, here) : max(first, here) + 1, column] = True
        previous = here
    return dots
