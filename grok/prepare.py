"""``grok prepare``: turns text into memory-mapped token files, with a report on the text."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from grok.commands.command import Parser, command, number
from grok.config.common import MOST_WORKERS
from grok.errors import DataError
from grok.processes import usable_cores
from grok.text.corpus import Corpus
from grok.text.documents import FORMS, Filters
from grok.text.preparation import Request, prepare
from grok.text.tokenizers import END_OF_TEXT, GPT2_VOCAB_ENV

_EXAMPLES = """\
examples:
  grok prepare text --input input.txt --tokenizer char --out data/shakespeare
  grok prepare tinystories --input TinyStoriesV2-GPT4-train.txt \\
      --split-file val=TinyStoriesV2-GPT4-valid.txt --tokenizer gpt2 --vocab DIR --out data/tinystories
  grok prepare wikitext --input wiki.train.tokens --split-file val=wiki.valid.tokens \\
      --split-file test=wiki.test.tokens --tokenizer gpt2 --out data/wikitext103
  grok prepare fables --input 2000:0 --tokenizer char --out data/fables
"""


@command(interrupted="nothing was changed; the same command starts again")
def main(argv: list[str]) -> int:
    """Prepare a corpus and print its report."""
    arguments = parser().parse_args(argv)
    corpus, was_there = prepare(_request(arguments), say=lambda line: print(line, file=sys.stderr, flush=True))
    print((corpus.path / "corpus.md").read_text(encoding="utf-8"))
    print(_summary(corpus, was_there))
    return 0


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="grok prepare",
        description="Prepare text for training: token ids, an index of documents, a manifest, a report.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "form",
        choices=list(FORMS),
        metavar="FORM",
        help="; ".join(f"{name}: {form.doc}" for name, form in FORMS.items()),
    )
    parser.add_argument(
        "--input",
        dest="inputs",
        nargs="+",
        required=True,
        metavar="FILE",
        help="files or folders, in the order to read them; for fables COUNT or COUNT:SEED",
    )
    parser.add_argument(
        "--tokenizer",
        required=True,
        help="char, byte, bpe (fitted here), gpt2, or a tokenizer.json",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the corpus folder to make")
    parser.add_argument(
        "--split-file",
        nargs="+",
        action="append",
        default=[],
        metavar="SPLIT=FILE",
        help="val=FILE or test=FILE: a split with its own file",
    )
    parser.add_argument(
        "--val-fraction",
        type=number(float, minimum=0, below=1),
        default=0.1,
        help="share of the documents (or of the characters of a single one), at the end of the input, for the"
        " validation split, without a val file (default 0.1)",
    )
    parser.add_argument(
        "--vocab-size", type=int, default=8192, help="number of ids of a BPE fitted here (default 8192)"
    )
    parser.add_argument(
        "--vocab", type=Path, metavar="DIR", help=f"folder with GPT-2's vocab.json and merges.txt (or {GPT2_VOCAB_ENV})"
    )
    parser.add_argument("--eot", default=END_OF_TEXT, help="a tokenizer.json's token that ends documents")
    parser.add_argument(
        "--field", dest="text_field", metavar="FIELD", help="column or key with the text in parquet and JSON files"
    )
    parser.add_argument(
        "--detokenize", action="store_true", help="undo WikiText's tokenisation: natural spacing and punctuation"
    )
    whole = number(int, minimum=0)
    parser.add_argument("--min-characters", type=whole, default=0, metavar="N", help="leave out shorter documents")
    parser.add_argument("--max-characters", type=whole, metavar="N", help="leave out longer documents")
    parser.add_argument(
        "--without-duplicates", action="store_true", help="leave out documents that repeat an earlier one of the input"
    )
    parser.add_argument("--lower-case", action="store_true", help="lower-case all text")
    parser.add_argument(
        "--workers",
        type=number(int, minimum=1, maximum=MOST_WORKERS),
        default=usable_cores(),
        help="number of processes (default: one per usable core)",
    )
    return parser


def _request(arguments: argparse.Namespace) -> Request:
    split_files: dict[str, tuple[str, ...]] = {}
    for text in (text for group in arguments.split_file for text in group):
        name, equals, file = text.partition("=")
        if not equals or not file or name not in ("val", "test"):
            raise DataError(f"--split-file {text}: expected val=FILE or test=FILE")
        split_files[name] = (*split_files.get(name, ()), file)
    given = vars(arguments)
    filters = Filters(**{f.name: given[f.name] for f in fields(Filters)})
    options = {f.name: given[f.name] for f in fields(Request) if f.name in given}
    return Request(**options | {"inputs": tuple(arguments.inputs), "split_files": split_files, "filters": filters})


def _summary(corpus: Corpus, was_there: bool) -> str:
    counts = ", ".join(f"{name} {corpus.split(name)['tokens']:,} tokens" for name in corpus.splits)
    state = "up to date" if was_there else "prepared"
    return f"{corpus.path} is {state}: {counts}; train on it with data.path={corpus.path}"


if __name__ == "__main__":
    sys.exit(main())
