"""Every kind of estimate holds the truth about as often as it says, in simulated studies."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.coverage import END, HEAD, PAGE, SECTIONS, START, STUDIES, cases, table
from tests.docs.pages import ROOT

MADE = (ROOT / PAGE).read_text(encoding="utf-8").partition(START)[2].partition(END)[0].partition(HEAD)[2]
COMMITTED = {
    tuple(cells[:3]): cells[3:] for cells in (line.strip("| ").split(" | ") for line in MADE.split("\n")[1:-2])
}
"""Lines of the page by section, case and estimate."""
FEW = {"redraws": 8, "crosses": 30, "half-fate": 15, "repeats": 20, "families": 900}
"""Studies of a fast test where 40 take long, or 900 take no time."""
LONG = ("redraws",)


def test_the_page_has_every_case_of_the_command() -> None:
    assert {line[:2] for line in COMMITTED} == {(section, case) for section, case, _ in cases()}
    told = {(line[0], int(cells[-1].replace(",", ""))) for line, cells in COMMITTED.items()}
    assert all(n == STUDIES or (section in ("half-fate", "times") and n > 0.75 * STUDIES) for section, n in told)


@pytest.mark.parametrize("section", [pytest.param(s, marks=[pytest.mark.slow] * (s in LONG)) for s in SECTIONS])
def test_a_few_studies_agree_with_the_page(section: str) -> None:
    """In how often each estimate holds and says so, by itself and all together, and in how wide it is."""
    counts: dict[str, list[tuple[int, int, float]]] = {"holds": [], "says so": []}
    widths = []
    for line in table(FEW.get(section, 40), section):
        *name, _, holds, _, _, width, says, studies = line.strip("| ").split(" | ")
        _, page_holds, _, _, page_width, page_says, _ = COMMITTED[tuple(name)]
        for what, seen, expected in (("holds", holds, page_holds), ("says so", says, page_says)):
            if expected:
                counts[what].append((round(int(studies) * float(seen)), int(studies), float(expected)))
        if page_width and 0.05 < float(page_width) < np.inf:
            widths.append(float(width) / float(page_width))
    for what, each in counts.items():
        for hits, n, share in each:
            assert stats.binomtest(hits, n, np.clip(share, 0.005, 0.995)).pvalue > 1e-3, what
        expected, variance = (
            sum(terms) for terms in zip((0, 0), *((n * p, n * p * (1 - p)) for _, n, p in each), strict=True)
        )
        assert abs(sum(hits for hits, *_ in each) - expected) <= 3 * variance**0.5, what
    assert not widths or np.mean(widths) == pytest.approx(1, abs=0.1)


def test_intervals_hold_as_often_as_they_say() -> None:
    """In 93% of the studies or more: fewer hold in one line of a hundred if 93% do (0.911 of 1,000 studies)."""
    for (*_, name), (_, holds, *_, studies) in COMMITTED.items():
        n = int(studies.replace(",", ""))
        assert not holds or name == "one look's interval" or float(holds) * n >= stats.binom.ppf(0.01, n, 0.93), name
