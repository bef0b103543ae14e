"""``grok evaluate RUN``: scores a trained model on a split, with each of its kept weights."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from grok.commands.command import Parser, command, natural, positive, refuse_unwritable, write_text
from grok.commands.trained import MOMENTS, TrainedRun, add_run, device_of, find_run, name_own_code
from grok.errors import ConfigError
from grok.gpt.planning.published import MODELS, PUBLISHED
from grok.text.corpus import Corpus

if TYPE_CHECKING:
    from grok.gpt.harness import TaskScore
    from grok.gpt.model import GPT

_AUTOCAST: Final = {"float32": None, "bf16": "bfloat16", "fp16": "float16"}
"""Names of torch's type for the matrix products."""
_TOKENS_AT_ONCE: Final = 8192


_EXAMPLES: Final = """\
examples:
  grok evaluate 3f2a --store results/store
  grok evaluate 3f2a --store results/store --split test --windows sliding --stride 256
  grok evaluate results/store/checkpoints/3f2a... --data data/wikitext103 --out scores.json
  grok evaluate 3f2a --store results/store --tasks tasks/lambada.yaml,piqa --out tasks.json
"""


@command()
def main(argv: list[str]) -> int:
    """Print the scores."""
    arguments = parser().parse_args(argv)
    name_own_code(arguments)
    print(_evaluate(arguments))
    return 0


def parser() -> Parser:
    """Return the command's arguments."""
    parser = Parser(
        prog="grok evaluate",
        description="Loss, perplexity per token and per word, and bits per byte of a trained language model.",
        epilog=_EXAMPLES,
    )
    add_run(parser)
    parser.add_argument("--split", default="val", help="split to score: val (default), test, train")
    parser.add_argument(
        "--weights", default="all", choices=["all", *MOMENTS], help="which weights to score (default: all kept)"
    )
    parser.add_argument(
        "--windows",
        default="fixed",
        choices=["fixed", "sliding"],
        help="fixed: windows that do not overlap; sliding: --stride apart",
    )
    parser.add_argument("--stride", type=positive, help="tokens between sliding windows (default: half the context)")
    parser.add_argument(
        "--context", type=positive, help="tokens of a window (default: the model's; ALiBi can take more)"
    )
    parser.add_argument("--batch-size", type=positive, help=f"windows at once (default: {_TOKENS_AT_ONCE:,} tokens)")
    parser.add_argument("--limit", type=positive, metavar="TOKENS", help="score only the first TOKENS tokens")
    parser.add_argument(
        "--precision", default="float32", choices=list(_AUTOCAST), help="precision of the matrix products"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="file for the scores, too")
    parser.add_argument(
        "--tasks", metavar="TASK,...", help="tasks of lm-evaluation-harness instead of a split: names, or YAML files"
    )
    parser.add_argument("--shots", type=natural, help="solved examples before each question (default: the task's)")
    parser.add_argument("--documents", type=positive, help="documents of each task (default: all)")
    return parser


def _evaluate(arguments: argparse.Namespace) -> str:
    """Return the scores as text, and write them to ``--out``, too."""
    _refuse_idle(arguments)
    if arguments.out is not None:
        refuse_unwritable("--out", arguments.out)
    run = find_run(arguments.run, arguments.store)
    corpus, device = run.corpus(arguments.data), device_of(arguments.device)
    weights = run.weights(None if arguments.weights == "all" else arguments.weights)
    models = ((which, run.model(tensors, corpus.vocab_size, device)) for which, tensors in weights.items())
    content, text = (_on_split if arguments.tasks is None else _on_tasks)(arguments, run, corpus, models)
    if arguments.out is not None:
        write_text("--out", arguments.out, json.dumps(content, indent=1) + "\n")
    return text


def _refuse_idle(arguments: argparse.Namespace) -> None:
    """Refuse options that do nothing beside the others."""
    usual = parser().parse_args([arguments.run])
    beside: tuple[str, ...] = ("shots", "documents")
    if arguments.tasks is not None:
        beside = ("split", "windows", "stride", "context", "batch_size", "limit", "precision")
    idle = [f"--{name.replace('_', '-')}" for name in beside if getattr(arguments, name) != getattr(usual, name)]
    if idle and arguments.tasks is None:
        raise ConfigError(f"{idle[0]} needs --tasks")
    if idle:
        raise ConfigError(f"{idle[0]} cannot be used with --tasks, which has its own windows")
    if arguments.stride is not None and arguments.windows == "fixed":
        raise ConfigError(f"--stride {arguments.stride} needs --windows sliding")


def _on_split(
    arguments: argparse.Namespace, run: TrainedRun, corpus: Corpus, models: Iterable[tuple[str, GPT]]
) -> tuple[dict[str, Any], str]:
    """Return the scores of ``models`` on a split of ``corpus``, as JSON-able values and as text."""
    import torch

    from grok.gpt.evaluate import score_split

    corpus.verify([arguments.split])
    autocast = _AUTOCAST[arguments.precision]
    context = arguments.context or run.model_config.context
    stride = (arguments.stride or max(1, context // 2)) if arguments.windows == "sliding" else None
    scores = {
        which: score_split(
            model,
            corpus,
            arguments.split,
            context=context,
            stride=stride,
            batch_size=arguments.batch_size or max(1, _TOKENS_AT_ONCE // context),
            limit=arguments.limit,
            autocast=None if autocast is None else getattr(torch, autocast),
        )
        for which, model in models
    }
    content = {
        "run_id": run.run_id,
        "data_hash": corpus.hash,
        "split": arguments.split,
        "context": context,
        "stride": stride,
        "word_rule": corpus.manifest["word_rule"],
        "detokenizer": corpus.manifest["detokenizer"],
        "scores": {which: score.as_dict() for which, score in scores.items()},
    }
    one = next(iter(scores.values()))
    windows = f"windows of {context:,}" + (", not overlapping" if stride is None else f", {stride:,} apart")
    words = "not counted" if one.words is None else f"{one.words:,} ({content['word_rule']})"
    lines = [
        f"run {run.run_id} on {arguments.split} of {corpus.path}",
        f"{windows}; {one.scored:,} tokens scored; {one.bytes:,} bytes; words: {words};"
        f" detokeniser: {content['detokenizer'] or 'none'}",
        "",
        f"{'weights':<10}{'loss':>10}{'perplexity':>14}{'per word':>14}{'bits/byte':>12}{'accuracy':>10}",
    ]
    for which, s in scores.items():
        per_word = "" if s.word_perplexity is None else _shown(s.word_perplexity)
        lines.append(
            f"{which:<10}{s.loss:>10.4f}{_shown(s.perplexity):>14}{per_word:>14}{s.bits_per_byte:>12.4f}"
            f"{s.accuracy:>10.4f}"
        )
    return content, "\n".join(lines)


def _on_tasks(
    arguments: argparse.Namespace, run: TrainedRun, corpus: Corpus, models: Iterable[tuple[str, GPT]]
) -> tuple[dict[str, Any], str]:
    """Return the scores of ``models`` on tasks, as JSON-able values and as text."""
    from grok.gpt.harness import load_tasks, score_tasks

    tasks = [task for task in arguments.tasks.split(",") if task]
    if not tasks:
        raise ConfigError(f"--tasks {arguments.tasks!r}: expected names of tasks, or YAML files")
    loaded = load_tasks(tasks, shots=arguments.shots)
    scores = {name: score_tasks(m, corpus.tokenizer, loaded, limit=arguments.documents) for name, m in models}
    content = record(run, scores)
    return content, page(content)


def _shown(perplexity: float) -> str:
    """Return a perplexity in at most twelve characters."""
    return f"{perplexity:,.2f}" if perplexity < 1e8 else f"{perplexity:.4g}"


# ``grok evaluate --tasks``: task scores of a trained model as lines and as a record, published ones beside them.


def record(run: TrainedRun, scores: Mapping[str, Sequence[TaskScore]]) -> dict[str, Any]:
    """Return the scores as JSON-able values, each set with where it comes from."""
    own = [{"weights": which, **asdict(s)} for which, listed in scores.items() for s in listed]
    keys = dict.fromkeys((s.task, s.metric) for listed in scores.values() for s in listed)
    published = [
        {"model": model, "task": task, "metric": metric, "value": value}
        for task, metric in keys
        for model, value in zip(MODELS, PUBLISHED.get((task, metric), ()), strict=False)
    ]
    return {"run_id": run.run_id, "computed_here": own, "published": published}


def page(content: Mapping[str, Any]) -> str:
    """Return the scores of a :func:`record` as lines; those that others published say so."""
    lines = [f"run {content['run_id']} by lm-evaluation-harness, computed here", ""]
    lines.append(f"{'weights':<10}{'task':<24} {'metric':<18}{'value':>12}{'stderr':>12}{'documents':>11}{'shots':>7}")
    for s in content["computed_here"]:
        numbers = ("" if x is None else f"{x:.4f}" if abs(x) < 1e6 else f"{x:.4g}" for x in (s["value"], s["stderr"]))
        shown = "".join(f"{number:>12}" for number in numbers)
        lines.append(f"{s['weights']:<10}{s['task']:<24} {s['metric']:<18}{shown}{s['documents']:>11,}{s['shots']:>7}")
    if content["published"]:
        lines += ["", "published by others, not computed here (the 580M model's log; the Pile's paper)"]
        lines += [f"{p['model']:<10}{p['task']:<24} {p['metric']:<18}{p['value']:>12.4f}" for p in content["published"]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
