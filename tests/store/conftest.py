"""A small store."""

from __future__ import annotations

from pathlib import Path

import pytest

from grok.store import StoreWriter
from grok.store.testing import example_rows


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Six runs in two shards."""
    with StoreWriter(tmp_path / "S") as writer:
        for start in (0, 3):
            writer.commit(example_rows(range(start, start + 3)))
    return tmp_path / "S"
