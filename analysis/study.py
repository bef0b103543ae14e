"""``grok study NAME STORE [--out DIR]``: one study of a store, its figures and their data."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from grok.analysis.observations import Observations
from grok.analysis.studies import QUESTIONS
from grok.analysis.studies.base import Missing, Question, Study
from grok.analysis.writing import FIGURES, default_folder, write_studies
from grok.commands.command import Parser, add_store, command, refuse_unwritable, store_of


def reading_parser(parser: Parser) -> Parser:
    """Add the arguments STORE and ``--out`` to ``parser``, and return it."""
    add_store(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: STORE/report)")
    return parser


def print_study(question: Question, arguments: argparse.Namespace) -> None:
    """Print the store's answer to ``question``, and write its figures and tables.

    Raises:
        GrokError: the store cannot be read, or the folder cannot be written.
    """
    store = store_of(arguments)
    if arguments.out is not None:
        refuse_unwritable("--out", arguments.out, folder=True)
    study = question.ask(Observations.read(store))
    if isinstance(study, Missing):
        print(missing_text(study))
        return
    print(study_text(study))
    out = arguments.out or default_folder(store)
    for drawing in write_studies([study], out)[study.name]:
        print(f"figure: {out / FIGURES / drawing.name}.png")


def missing_text(study: Missing) -> str:
    """Return what a question needs, and the command that provides it."""
    remedy = f"\nget it with: {study.command}" if study.command else ""
    return f"{study.title}: not enough data: needs {study.needs}{remedy}"


def study_text(study: Study) -> str:
    """Return a study as text: its scope, findings, notes and tables."""
    lines = [f"{study.title}: {study.question}"]
    lines += [f"  {study.scope}"] if study.scope else []
    lines += [f"  {finding.text}" for finding in study.findings]
    lines += [f"  note: {note}" for note in study.notes]
    for table in study.tables:
        if len(table.frame):
            lines.append(f"\n{table.caption}\n{table.frame.to_string(index=False)}")
    return "\n".join(lines)


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="grok study",
        description="Answer one question of a store; write its figures and their data.",
        epilog="studies:\n" + "\n".join(f"  {question.name:<20} {question.question}" for question in QUESTIONS),
    )
    parser.add_argument("name", metavar="NAME", choices=[question.name for question in QUESTIONS], help="see below")
    return reading_parser(parser)


@command()
def main(argv: list[str]) -> int:
    """Answer the question."""
    arguments = parser().parse_args(argv)
    print_study(next(question for question in QUESTIONS if question.name == arguments.name), arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
