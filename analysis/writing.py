"""Studies on disk: figures (png, svg and the csv behind them) and tables (csv), below one folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.studies.base import Study
from grok.errors import StoreError

if TYPE_CHECKING:
    from analysis.figures.style import Drawing

FIGURES, TABLES = "figures", "tables"


def write_studies(studies: Sequence[Study], out: Path) -> dict[str, list[Drawing]]:
    """Write the figures and tables of ``studies`` below ``out``; return each study's drawings by its name.

    Raises:
        StoreError: ``out`` cannot be written.
    """
    from analysis.figures import drawings

    with writing_below(out):
        for folder in (FIGURES, TABLES):
            (out / folder).mkdir(parents=True, exist_ok=True)
        drawn = {study.name: list(drawings(study)) for study in studies}
        for drawing in (d for group in drawn.values() for d in group):
            drawing.write(out / FIGURES)
        for study in studies:
            for table in study.tables:
                table.frame.to_csv(out / TABLES / f"{study.name}_{table.name}.csv", index=False)
            for name, frame in study.files.items():
                frame.to_csv(out / name, index=False)
    return drawn


@contextmanager
def writing_below(out: Path) -> Iterator[None]:
    """Say of any file that cannot be written which folder was asked for.

    Raises:
        StoreError: the disk refuses.
    """
    try:
        yield
    except OSError as error:
        raise StoreError(f"--out {out}: cannot be written ({error.strerror}); give a folder that can") from error
