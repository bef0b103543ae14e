"""``grok generate RUN --prompt TEXT``: a trained model continues a text; equal seeds give equal texts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from grok.commands.command import Parser, command, number, positive, refuse_unwritable, write_text
from grok.commands.trained import MOMENTS, add_run, device_of, find_run, name_own_code
from grok.errors import DataError, in_words
from grok.streams import MAX_SEED
from grok.text.corpus import Corpus

_EXAMPLES: Final = """\
examples:
  grok generate 3f2a --store results/store --prompt "Once upon a time"
  grok generate 3f2a --store results/store --prompt-file prompts.txt --samples 3 --out-file texts.jsonl
"""


@command()
def main(argv: list[str]) -> int:
    """Print or write the texts."""
    arguments = parser().parse_args(argv)
    name_own_code(arguments)
    texts = _generate(arguments)
    if arguments.out_file is None:
        print(_plain(texts))
    else:
        as_lines = arguments.out_file.suffix == ".jsonl"
        lines = "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in texts)
        write_text("--out-file", arguments.out_file, lines if as_lines else _plain(texts) + "\n")
        print(f"{len(texts)} texts are in {arguments.out_file}", file=sys.stderr)
    return 0


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="grok generate",
        description="Sample text from a trained language model; the same seed gives the same text.",
        epilog=_EXAMPLES,
    )
    add_run(parser)
    parser.add_argument(
        "--weights", choices=list(MOMENTS), help="which weights (default: the best if they were kept, else the last)"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", help="text to continue (default: the end-of-text token, or a line end)")
    source.add_argument(
        "--prompt-file", type=Path, metavar="F", help='file with one prompt per line; .jsonl: {"prompt": text} per line'
    )
    parser.add_argument(
        "--out-file", type=Path, metavar="F", help="file for the texts; .jsonl: one JSON object per text"
    )
    many = number(int, minimum=1, maximum=2**20)
    parser.add_argument("--tokens", type=many, default=200, help="number of new tokens per text (default 200)")
    parser.add_argument("--samples", type=many, default=1, help="number of texts per prompt (default 1)")
    parser.add_argument(
        "--temperature",
        type=number(float, minimum=0),
        default=0.8,
        help="sampling temperature; 0: the likeliest token (default 0.8)",
    )
    parser.add_argument("--top-k", type=positive, help="sample among this many likeliest tokens")
    parser.add_argument(
        "--top-p",
        type=number(float, above=0, maximum=1),
        help="sample among the likeliest tokens with this total probability",
    )
    parser.add_argument(
        "--seed", type=number(int, minimum=0, maximum=MAX_SEED), default=0, help="seed of the sampling (default 0)"
    )
    parser.add_argument("--batch-size", type=positive, default=16, help="texts computed at once (default 16)")
    return parser


def _generate(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from grok.gpt.generate import Sampler, generate

    if arguments.out_file is not None:
        refuse_unwritable("--out-file", arguments.out_file)
    sampler = Sampler(arguments.temperature, arguments.top_k, arguments.top_p)
    run = find_run(arguments.run, arguments.store)
    corpus = run.corpus(arguments.data)
    tokenizer = corpus.tokenizer
    prompts = _prompts(arguments, corpus)
    device = device_of(arguments.device)
    weights = run.weights(arguments.weights)
    which = arguments.weights or ("best" if "best" in weights else "last")
    continuations = generate(
        run.model(weights[which], corpus.vocab_size, device),
        [ids for _, ids in prompts],
        tokens=arguments.tokens,
        sampler=sampler,
        seed=arguments.seed,
        samples=arguments.samples,
        eot_id=corpus.eot_id,
        vocab_size=corpus.vocab_size,
        batch_size=arguments.batch_size,
    )
    return [
        {
            "prompt": prompts[g.prompt][0],
            "text": tokenizer.decode(g.ids),
            "sample": g.sample,
            "seed": arguments.seed,
            "tokens": len(g.ids),
            "ended": g.ended,
            "weights": which,
            "run_id": run.run_id,
        }
        for g in continuations
    ]


def _prompts(arguments: argparse.Namespace, corpus: Corpus) -> list[tuple[str, list[int]]]:
    """Return each prompt's text and ids; an empty prompt begins a new document."""
    texts = [arguments.prompt or ""] if arguments.prompt_file is None else _prompts_of_file(arguments.prompt_file)
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:  # bytes of a command line, or half a pair in JSON
            raise DataError(f"the prompt {text!r:.60} has a character that is no Unicode text: give UTF-8") from error
    encode, end = corpus.tokenizer.encode, corpus.document_end
    return [(text, encode(text or "\n").tolist() if text or end is None else [end]) for text in texts]


def _prompts_of_file(file: Path) -> list[str]:
    words = f'--prompt-file {file} cannot be read: expected text, or in .jsonl {{"prompt": text}} a line'
    with in_words(DataError, words):
        # only \n ends a line: JSON and plain text may hold other separators, such as U+2028
        lines = [line for line in file.read_text(encoding="utf-8-sig").split("\n") if line]
        prompts = [json.loads(line)["prompt"] for line in lines] if file.suffix == ".jsonl" else lines
    if not prompts or not all(isinstance(prompt, str) for prompt in prompts):
        raise DataError(f"--prompt-file {file} has no prompt: expected one per line")
    return prompts


def _plain(texts: Sequence[dict[str, Any]]) -> str:
    return "\n---\n".join(f"{text['prompt']}{text['text']}" for text in texts)


if __name__ == "__main__":
    sys.exit(main())
