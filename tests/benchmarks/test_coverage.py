"""The coverage page has every simulated study of its command, with enough repetitions."""

from __future__ import annotations

from benchmarks.coverage import END, HEAD, PAGE, START, STUDIES, cases, table
from tests.docs.pages import ROOT


def test_the_page_has_every_case_of_the_command() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    made = text[text.index(START) : text.index(END)]
    assert HEAD in made
    lines = [line.strip("| ").split(" | ") for line in made.split(HEAD)[1].strip().splitlines()]
    assert {(section, case) for section, case, *_ in lines} == {(section, case) for section, case, _ in cases()}
    assert {line[-1] for line in lines} == {f"{STUDIES:,}"}


def test_a_line_says_how_often_the_interval_holds() -> None:
    line = next(iter(table(8, "families"))).strip("| ").split(" | ")
    assert line[0] == "families" and line[-1] == "8"
    holds, below, above = map(float, line[4:7])
    assert holds + below + above == 1
