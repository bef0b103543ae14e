"""Every kind of estimate holds the truth about as often as it says, in simulated studies."""

import pytest

from benchmarks.coverage import SECTIONS, table


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_intervals_hold_as_often_as_they_say(section: str) -> None:
    for line in table(1000, section):
        cells = line.split(" | ")
        if cells[4].strip() and cells[2] != "one look's interval":
            assert float(cells[4]) > 0.91, line
