"""``grok study NAME STORE [--out DIR]``: one study of a store, its figures and their data."""

from __future__ import annotations

import argparse
import sys

from analysis.command import print_study, reading_parser
from analysis.studies import QUESTIONS
from grok.cli.command import Parser, command


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="grok study",
        description="Answer one question of a store; write its figures and their data.",
        epilog="studies:\n" + "\n".join(f"  {question.name:<20} {question.question}" for question in QUESTIONS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
