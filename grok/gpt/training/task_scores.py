"""Tasks of lm-evaluation-harness that a run scores while it trains (``eval.tasks``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from grok.config.gpt import GptConfig
from grok.errors import GrokError
from grok.gpt.harness import Tasks, load_tasks, score_tasks
from grok.gpt.model import GPT
from grok.records import TASK
from grok.text.tokenizers import Tokenizer


@dataclass(slots=True)
class TaskScores:
    """The tasks that a run scores, and the steps at which it does."""

    tasks: Tasks | None
    """None: there are no tasks, or another process scores them."""
    steps: frozenset[int]
    documents: int | None
    """Largest number of documents of a task; None: all."""

    @classmethod
    def of(cls, config: GptConfig, due: frozenset[int], *, here: bool) -> TaskScores:
        """Return the tasks of a run that is evaluated at the steps ``due``; ``here``: whether this process scores them.

        Every ``eval.tasks_every``-th evaluation scores the tasks, and also the last one.

        Raises:
            ConfigError: the harness is not installed, or it cannot read a task.
        """
        every = config.eval.tasks_every
        steps = frozenset({*sorted(due)[every - 1 :: every], config.train.steps})
        tasks = load_tasks(config.eval.tasks, "eval.tasks=") if config.eval.tasks and here else None
        return cls(tasks, steps, config.eval.task_documents)

    def at(self, step: int, model: GPT, tokenizer: Tokenizer, say: Callable[[str], None]) -> dict[str, float]:
        """Return each metric at ``step``, and its standard error if it has one, by its name in the curve.

        Tasks that cannot be scored are named once, through ``say``, and then left out: the run continues without them.
        """
        if self.tasks is None or step not in self.steps:
            return {}
        try:
            scores = score_tasks(model, tokenizer, self.tasks, limit=self.documents)
        except GrokError as error:
            say(f"eval.tasks could not be scored at step {step} ({error}); the run continues without task scores")
            self.tasks = None
            return {}
        values = {f"{TASK}{s.task}.{s.metric}": s.value for s in scores}
        return values | {f"{TASK}{s.task}.{s.metric}_stderr": s.stderr for s in scores if s.stderr is not None}
