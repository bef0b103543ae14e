"""``grok evaluate --tasks``: task scores of a trained model as lines and as a record, published ones beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from grok.cli.trained import TrainedRun, device_of
from grok.gpt.published_tasks import MODELS, PUBLISHED
from grok.text.corpus import Corpus

if TYPE_CHECKING:
    from grok.gpt.harness import TaskScore


def score_run(
    run: TrainedRun,
    corpus: Corpus,
    tasks: Sequence[str],
    *,
    which: str | None,
    device: str,
    shots: int | None,
    limit: int | None,
) -> dict[str, list[TaskScore]]:
    """Return the task scores of each of the run's weights, or of those named ``which``.

    Raises:
        GrokError: no such weights, no harness, an unknown task, a text that the tokeniser cannot say.
    """
    from grok.gpt.harness import load_tasks, score_tasks

    place, loaded = device_of(device), load_tasks(tasks, shots=shots)
    return {
        name: score_tasks(run.model(tensors, corpus.vocab_size, place), corpus.tokenizer, loaded, limit=limit)
        for name, tensors in run.weights(which).items()
    }


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


def page(run: TrainedRun, scores: Mapping[str, Sequence[TaskScore]]) -> str:
    """Return the scores as lines; those that others published say so."""
    lines = [f"run {run.run_id} by lm-evaluation-harness, computed here", ""]
    lines.append(f"{'weights':<10}{'task':<24} {'metric':<18}{'value':>12}{'stderr':>12}{'documents':>11}{'shots':>7}")
    for which, listed in scores.items():
        for s in listed:
            value, stderr = (
                "" if x is None else f"{x:.4f}" if abs(x) < 1e6 else f"{x:.4g}" for x in (s.value, s.stderr)
            )
            lines.append(f"{which:<10}{s.task:<24} {s.metric:<18}{value:>12}{stderr:>12}{s.documents:>11,}{s.shots:>7}")
    published = record(run, scores)["published"]
    if published:
        lines += ["", "published by others, not computed here (the 580M model's log; the Pile's paper)"]
        lines += [f"{p['model']:<10}{p['task']:<24} {p['metric']:<18}{p['value']:>12.4f}" for p in published]
    return "\n".join(lines)
