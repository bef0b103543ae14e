"""The report that several files look at."""

import os
from pathlib import Path

import numpy as np
import pytest

from grok.analysis import report
from grok.files import locked
from tests.analysis.simulate import census, crossed, write


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a ``store`` and its report, ``out``: made by the first process of the tests that asks."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # of all processes of this run
    folder = shared / "reported"
    with locked(shared / "reported.lock", patience=300):
        if not (folder / "out" / "report.html").exists():
            truths = census(40, np.random.default_rng(20), steps=20_000, every=500)
            truths += crossed((2, 5, 5), np.random.default_rng(21), {"init": 0.1, "order": 0.1, "chaos": 0.1})
            store = write(truths, folder / "store")
            assert report.main([str(store), "--out", str(folder / "out")]) == 0
    return folder
