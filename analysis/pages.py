"""``python -m analysis.pages FOLDER...``: rebuild the pages of ``results/`` from their committed stores.

A FOLDER has ``page.md.j2`` (the text without numbers) and ``store/``. This writes README.md, and
figures/NAME.{png,svg,csv} and tables/NAME.csv of every study that the text uses. Every number of a page
comes from a study of its store.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import jinja2
import pandas as pd

from grok.analysis.observations import Observations
from grok.analysis.purposes import absent, roles
from grok.analysis.statistics.estimate import write_csv
from grok.analysis.studies import BY_NAME, Finding, Missing, Study
from grok.commands.command import Parser, command
from grok.errors import ConfigError, StoreError, in_words, nearest

if TYPE_CHECKING:
    from grok.analysis.figures.style import Drawing

TEMPLATE: Final = "page.md.j2"
OPENING: Final = "opening.md.j2"
"""Template of the paragraph about this page in another file, between two marks."""
STORE: Final = "store"
FIGURES: Final = "figures"
NOT_YET: Final = "not trained yet"
NOT_DRAWN: Final = "Not drawn, too few runs:"


@dataclass
class Page:
    """One folder of ``results/``: its store, and the studies that its text uses."""

    folder: Path
    studies: dict[str, Study | Missing] = field(default_factory=dict)
    removed: list[Path] = field(default_factory=list)
    """Figures and tables of earlier versions of the page, after it was written."""

    _drawings: dict[str, list[Drawing]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.folder / TEMPLATE).is_file():
            raise ConfigError(f"{self.folder} has no {TEMPLATE}: expected a folder of results with a page to rebuild")
        self.observations = Observations.read(self.folder / STORE)

    def study(self, name: str) -> Study | Missing:
        """Return the answer to the question ``name``.

        Raises:
            ConfigError: there is no such question.
        """
        if name not in BY_NAME:
            raise ConfigError(f"no study {name!r}{nearest(name, BY_NAME)}")
        if name not in self.studies:
            self.studies[name] = BY_NAME[name].ask(self.observations)
        return self.studies[name]

    def reference(self, name: str) -> Study | Missing:
        """Return the answer to ``name``; if it has parts (populations, conditions), that of the first part."""
        study = self.study(name)
        return study.parts[0] if isinstance(study, Study) and study.parts else study

    def findings(self, name: str) -> list[Finding]:
        """Return the findings of a study; none if it has no answer yet."""
        study = self.reference(name)
        return [] if isinstance(study, Missing) else study.findings

    def shown(self, name: str, label: str) -> str:
        """Return the formatted number of a study's finding ``label``, or ``NOT_YET``."""
        return next((finding.shown for finding in self.findings(name) if finding.label == label), NOT_YET)

    def sentences(self, name: str, headlines: bool = True, about: str = "", without: str = "") -> str:
        """Return a study's findings as a Markdown list, or ``NOT_YET``.

        Args:
            name: the question.
            headlines: whether only the main findings are wanted.
            about: text that the label of a finding must contain.
            without: text that it may not contain; empty for any label.
        """
        chosen = [
            f"- {f.text}"
            for f in self.findings(name)
            if (f.headline or not headlines) and about in f.label and not (without and without in f.label)
        ]
        return "\n".join(chosen) or f"{NOT_YET.capitalize()}."

    def notes(self, name: str) -> str:
        """Return what limits a study's answer, as a Markdown list; empty if it has no answer yet."""
        study = self.reference(name)
        return "" if isinstance(study, Missing) else "\n".join(f"- {note}" for note in [*study.lacks, *study.notes])

    def pending(self, *kinds: str) -> str:
        """Return how many planned runs are missing of the designs of these kinds; empty if none."""
        said = absent([of for of in self.observations.once(roles).missing if of.kind in kinds])
        return f"**Not finished:** {said}" * bool(said)

    def table(self, name: str, table: str, columns: Sequence[str] | None = None) -> str:
        """Return a table of a study in Markdown, ``NOT_YET``, or nothing if the study answers without this table."""
        study = self.reference(name)
        if isinstance(study, Missing):
            return f"{NOT_YET.capitalize()}."
        made = [t.frame for t in study.tables if t.name == table]
        if not made:
            return ""  # the study says it in sentences
        return markdown(made[0] if columns is None else made[0][list(columns)])

    def drawings(self, name: str) -> list[Drawing]:
        """Return the figures of a study, including those that only these pages show."""
        from grok.analysis.figures import drawings

        if name not in self._drawings:
            study = self.reference(name)
            self._drawings[name] = [] if isinstance(study, Missing) else drawings(study, for_page=True)
        return self._drawings[name]

    def figure(self, name: str, drawing: str, words: str) -> str:
        """Return a figure of a study in Markdown, ``words`` as its alternative text.

        Empty if the study has no figure at all. If it has others, a sentence stands in the place of the missing one.
        """
        names = [made.name for made in self.drawings(name)]
        if names and drawing not in names:
            return f"{NOT_DRAWN} {words}."
        return f"![{words}]({FIGURES}/{drawing}.png)" if names else ""

    def text(self, template: str = TEMPLATE) -> str:
        """Return the page, or another template of the folder, filled in from the same studies."""
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(self.folder), undefined=jinja2.StrictUndefined, keep_trailing_newline=True
        )
        methods = ("reference", "shown", "sentences", "table", "notes", "pending", "figure")
        names = {name: getattr(self, name) for name in methods}
        tables = {"runs": self.observations.all_runs, "designs": self.observations.designs}
        return environment.get_template(template).render(names, **tables)

    def write(self) -> Path:
        """Write the page, its studies' figures and tables, and remove other files beside these; return the page's path.

        Raises:
            StoreError: the folder cannot be written.
        """
        text = self.text()
        figures, tables = self.folder / FIGURES, self.folder / "tables"
        page = self.folder / "README.md"
        current: dict[Path, set[str]] = {figures: set(), tables: set()}
        with in_words(StoreError, f"{self.folder} cannot be written", OSError):
            for folder in current:
                folder.mkdir(exist_ok=True)
            for name in list(self.studies):
                study = self.reference(name)
                for drawing in self.drawings(name):
                    drawing.write(figures)
                    current[figures].add(drawing.name)
                for made in [] if isinstance(study, Missing) else study.tables:
                    write_csv(made.frame, tables / f"{made.name}.csv")
                    current[tables].add(made.name)
            for folder, names in current.items():
                for former in sorted(folder.iterdir()):
                    if former.is_file() and former.stem not in names:  # of a study that gives it no more
                        former.unlink()
                        self.removed.append(former)
            page.write_text(text, encoding="utf-8")
        return page

    def opening(self, text: str) -> str:
        """Return ``text`` with the part between the page's marks replaced by the page's ``opening.md.j2``.

        Raises:
            ConfigError: ``text`` has no such marks.
        """
        first, last = f"<!-- {self.folder.name}: made by make results -->\n", f"<!-- end of {self.folder.name} -->"
        before, mark, rest = text.partition(first)
        _, end, after = rest.partition(last)
        if not mark or not end:
            raise ConfigError(f"no place for {self.folder.name}: expected the lines {first.strip()} and {last}")
        return before + first + self.text(OPENING) + last + after


def markdown(frame: pd.DataFrame) -> str:
    """Return ``frame`` as a Markdown table with the column names as its header.

    >>> print(markdown(pd.DataFrame({"seed": [1], "class": ["super"]})))
    | seed | class |
    |---|---|
    | 1 | super |
    """
    lines = ["| " + " | ".join(map(str, frame.columns)) + " |", "|" + "---|" * len(frame.columns)]
    cells = frame.map(lambda value: "" if pd.isna(value) else str(value).replace("|", "\\|"))
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in cells.itertuples(index=False))])


@command()
def main(argv: list[str]) -> int:
    """Rebuild the pages."""
    parser = Parser(prog="python -m analysis.pages", description="Rebuild pages from their stores.")
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="folders below results/")
    parser.add_argument("--into", type=Path, metavar="FILE", help="also renew the paragraphs of FILE about the folders")
    arguments = parser.parse_args(argv)
    for folder in arguments.folders:
        page = Page(folder)
        print(page.write())
        for former in page.removed:
            print(f"removed {former}: no study of the page gives it")
        if arguments.into is not None and (folder / OPENING).is_file():
            arguments.into.write_text(page.opening(arguments.into.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
