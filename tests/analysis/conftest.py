"""Reports without pictures, for tests that read the page only: drawing takes most of a report's time."""

from __future__ import annotations

import pytest

from analysis.figures.style import Drawing


@pytest.fixture
def no_png(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the PNG of each figure: the page holds the SVG, and one picture each is enough to try a figure."""
    monkeypatch.setattr(Drawing, "png", lambda drawing: b"")
