"""``grok prepare``: turns text into memory-mapped token files, with a report on the text."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from grok.commands.command import Parser, command, number
from grok.config.common import MOST_WORKERS
from grok.errors import DataError
from grok.plugins import name_code
from grok.processes import usable_cores
from grok.text.corpus import Corpus
from grok.text.preparation import Request, prepare
from grok.text.sources import FORMS
from grok.text.sources.documents import Filters
from grok.text.tokenizers import END_OF_TEXT, GPT2_VOCAB_ENV, is_import_path

_EXAMPLES = """\
examples:
  grok prepare text --input input.txt --tokenizer char --out data/shakespeare
  grok prepare tinystories --input TinyStoriesV2-GPT4-train.txt \\
      --split-file val=TinyStoriesV2-GPT4-valid.txt --tokenizer gpt2 --vocab DIR --out data/tinystories
  grok prepare wikitext --input wiki.train.tokens --split-file val=wiki.valid.tokens \\
      --split-file test=wiki.test.tokens --tokenizer gpt2 --out data/wikitext103
  grok prepare fables --input 2000:0 --tokenizer char --out data/fables
  grok prepare verses.verses --input poems.txt --tokenizer words.Words --out data/poems
"""


@command(interrupted="nothing was changed; the same command starts again")
def main(argv: list[str]) -> int:
    """Prepare a corpus and print its report."""
    arguments = parser().parse_args(argv)
    request = _request(arguments)
    named = [name for name in (request.form, request.tokenizer) if is_import_path(name)]
    if arguments.tokenizer_code is not None:
        named.append(arguments.tokenizer_code)
    name_code(arguments.plugin_path, named)
    corpus, was_there = prepare(request, say=lambda line: print(line, file=sys.stderr, flush=True))
    print((corpus.path / "corpus.md").read_text(encoding="utf-8"))
    print(_summary(corpus, was_there))
    return 0


class _Forms(list[str]):
    """The known forms, for help and completion; every import path counts as one, too."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or is_import_path(str(name))


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="grok prepare",
        description="Prepare text for training: token ids, an index of documents, a manifest, a report.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "form",
        choices=_Forms(FORMS),
        metavar="FORM",
        help="; ".join(f"{name}: {form.doc}" for name, form in FORMS.items())
        + "; or MODULE.NAME: a function of your own that yields the documents of one input",
    )
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="FILE",
        help="files or folders, in the order to read them; hf://owner/name[:config][@split] through the `datasets`"
        " package; for fables COUNT or COUNT:SEED",
    )
    parser.add_argument(
        "--tokenizer",
        required=True,
        help="char, byte, bpe (fitted here), gpt2, a tokenizer.json, or MODULE.NAME of your own",
    )
    parser.add_argument(
        "--tokenizer-code",
        metavar="MODULE.NAME",
        help="code of your own behind the tokenizer.json of --tokenizer, to use that tokeniser for another corpus",
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
    parser.add_argument("--field", help="column or key with the text in parquet and JSON files")
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
    parser.add_argument("--plugin-path", metavar="DIR", default=".", help="folder of your own code (default: .)")
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
    if arguments.tokenizer_code is not None and not Path(arguments.tokenizer).is_file():
        raise DataError(
            f"--tokenizer-code {arguments.tokenizer_code} needs the tokenizer.json of a corpus, --tokenizer is"
            f" {arguments.tokenizer}"
        )
    return Request(
        form=arguments.form,
        inputs=tuple(arguments.input),
        out=arguments.out,
        tokenizer=arguments.tokenizer,
        split_files=split_files,
        val_fraction=arguments.val_fraction,
        vocab_size=arguments.vocab_size,
        vocab=arguments.vocab,
        eot=arguments.eot,
        text_field=arguments.field,
        detokenize=arguments.detokenize,
        filters=Filters(
            arguments.min_characters, arguments.max_characters, arguments.without_duplicates, arguments.lower_case
        ),
        workers=arguments.workers,
    )


def _summary(corpus: Corpus, was_there: bool) -> str:
    counts = ", ".join(f"{name} {corpus.split(name)['tokens']:,} tokens" for name in corpus.splits)
    state = "up to date" if was_there else "prepared"
    return f"{corpus.path} is {state}: {counts}; train on it with data.path={corpus.path}"


if __name__ == "__main__":
    sys.exit(main())
