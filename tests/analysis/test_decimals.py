"""Numbers in files do not depend on a processor's last bits."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from analysis.statistics.estimate import write_csv


def test_last_bits_change_no_file(tmp_path: Path) -> None:
    texts = []
    for third in (0.1 + 0.2, 0.3):
        frame = pd.DataFrame({
            "plain": [third, math.nan],
            "words": pd.Series([third, "all"], dtype=object),
            "nullable": pd.Series([third, None], dtype="Float64"),
            "seed": [2**62 + 1, 7],
            "text": ["0.30000000000000004", "b"],
        })  # fmt: skip
        write_csv(frame, tmp_path / "x.csv")
        texts.append((tmp_path / "x.csv").read_text())
        assert frame["plain"][0] == third, "the frame is left as it was"
    assert texts[0] == texts[1]
    assert texts[0].splitlines()[1] == f"0.3,0.3,0.3,{2**62 + 1},0.30000000000000004"
