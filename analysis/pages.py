"""``python -m analysis.pages FOLDER...``: rebuild the pages of ``results/`` from their committed stores.

A FOLDER holds ``page.md.j2`` (the text, without numbers) and ``store/``. This writes README.md, and
beside it figures/NAME.{png,svg,csv} and tables/NAME.csv of every study that the text takes something from.
A page has no number of its own: each is asked from a study of the store.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import jinja2
import pandas as pd

from analysis.observations import Observations
from analysis.studies import QUESTIONS, Missing, Study
from grok.cli.command import Parser, command
from grok.errors import ConfigError, StoreError, nearest

TEMPLATE: Final = "page.md.j2"
STORE: Final = "store"


@dataclass
class Page:
    """One folder of ``results/``: its store, and the studies that its text uses."""

    folder: Path
    studies: dict[str, Study | Missing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.folder / TEMPLATE).is_file():
            raise ConfigError(f"{self.folder} has no {TEMPLATE}: expected a folder of results with a page to rebuild")
        self.observations = Observations.read(self.folder / STORE)

    def study(self, name: str) -> Study | Missing:
        """Return the answer to the question ``name``.

        Raises:
            ConfigError: there is no such question.
        """
        if name not in self.studies:
            question = next((q for q in QUESTIONS if q.name == name), None)
            if question is None:
                raise ConfigError(f"no study {name!r}{nearest(name, [q.name for q in QUESTIONS])}")
            self.studies[name] = question.ask(self.observations)
        return self.studies[name]

    def shown(self, name: str, label: str) -> str:
        """Return the number of the finding ``label`` of a study, as people read it, or what it still needs."""
        study = self.study(name)
        if isinstance(study, Missing):
            return f"not answered yet (needs {study.needs})"
        for finding in study.findings:
            if finding.label == label:
                return finding.shown
        return "not answered yet"

    def table(self, name: str, table: str, columns: Sequence[str] | None = None) -> str:
        """Return a table of a study as Markdown, or what the study still needs."""
        study = self.study(name)
        if isinstance(study, Missing):
            return f"Not answered yet: needs {study.needs}."
        for made in study.tables:
            if made.name == table:
                return markdown(made.frame if columns is None else made.frame[list(columns)])
        return "Not answered yet."

    def text(self) -> str:
        """Return the page."""
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(self.folder), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
        )
        template = environment.get_template(TEMPLATE)
        return template.render(study=self.study, shown=self.shown, table=self.table, runs=self.observations.all_runs)

    def write(self) -> Path:
        """Write the page, and the figures and tables of the studies it uses; return the page's path.

        Raises:
            StoreError: the folder cannot be written.
        """
        from analysis.figures import drawings

        text = self.text()
        figures, tables = self.folder / "figures", self.folder / "tables"
        try:
            for folder in (figures, tables):
                folder.mkdir(exist_ok=True)
            for study in self.studies.values():
                if isinstance(study, Missing):
                    continue
                for drawing in drawings(study, for_page=True):
                    drawing.write(figures)
                for made in study.tables:
                    made.frame.to_csv(tables / f"{made.name}.csv", index=False)
            page = self.folder / "README.md"
            page.write_text(text, encoding="utf-8")
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot be written ({error.strerror})") from error
        return page


def markdown(frame: pd.DataFrame) -> str:
    """Return ``frame`` as a Markdown table; the column names are the head.

    >>> print(markdown(pd.DataFrame({"seed": [1], "class": ["super"]})))
    | seed | class |
    |---|---|
    | 1 | super |
    """
    lines = ["| " + " | ".join(map(str, frame.columns)) + " |", "|" + "---|" * len(frame.columns)]
    return "\n".join([*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in frame.itertuples(index=False))])


def _cell(value: Any) -> str:
    return "" if pd.isna(value) else str(value).replace("|", "\\|")


@command()
def main(argv: list[str]) -> int:
    """Rebuild the pages."""
    parser = Parser(prog="python -m analysis.pages", description="Rebuild pages from their stores.")
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="folders below results/")
    for folder in parser.parse_args(argv).folders:
        print(Page(folder).write())
    return 0


if __name__ == "__main__":
    sys.exit(main())
