"""Tasks of lm-evaluation-harness (extra ``tasks``), scored offline by a model of this project.

The harness requests log-likelihoods of texts and greedy continuations. Windows, prefix and truncation are those of its
Hugging Face models. So an exported model gets the same figures from the harness itself.
Source: github.com/EleutherAI/lm-evaluation-harness.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from torch.nn.functional import cross_entropy

from grok.config.gpt import GptConfig
from grok.errors import ConfigError, DataError, GrokError, in_words, nearest
from grok.gpt.generate import Ahead
from grok.gpt.model import GPT
from grok.records import TASK
from grok.text.tokenizers import Tokenizer

YAML: Final = (".yaml", ".yml")
TOKENS_AT_ONCE: Final = 8192
BOOTSTRAP: Final = 100
"""Resamples for the standard error of a metric without a formula."""
DEFAULT_TOKENS: Final = 256
"""Tokens of a continuation where a task does not say how many, as in the harness."""
FEWSHOT_SEED: Final = 1234
"""The harness's own seed for the choice of solved examples."""
OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DISABLE_MULTIPROC": "1",
                  "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One metric of one task."""

    task: str
    metric: str
    value: float
    stderr: float | None
    documents: int
    shots: int


class Predictions:
    """What the harness requests of a model, by ids: sums of log-likelihoods and greedy continuations."""

    def __init__(self, model: GPT, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.context, self.device = model.config.context, model.device

    def prefix(self) -> int:
        """Return the token that is put before a text: end of text, or a line break if there is none.

        Raises:
            DataError: the tokeniser has neither.
        """
        return self.tokenizer.eot_id if self.tokenizer.eot_id is not None else self.encode("\n")[0]

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``.

        Raises:
            DataError: the text has characters that the tokeniser lacks.
        """
        return [int(i) for i in self.tokenizer.encode(text)]

    @torch.no_grad()
    def score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation after its context, and whether greedy decoding would give it.

        What does not fit is cut off at the beginning of the context.
        """
        cut = [((context + own)[-(self.context + 1) :], min(len(own), self.context)) for context, own in pairs]
        order = sorted(range(len(cut)), key=lambda i: -len(cut[i][0]))
        results: list[tuple[float, bool]] = [(0.0, True)] * len(cut)
        while order:
            width = len(cut[order[0]][0]) - 1
            chosen, order = order[: max(1, TOKENS_AT_ONCE // width)], order[max(1, TOKENS_AT_ONCE // width) :]
            # attention is causal: padding after a text changes nothing
            padded = [cut[i][0] + [0] * (width + 1 - len(cut[i][0])) for i in chosen]
            tokens = torch.tensor(padded, device=self.device)
            logits = self.model(tokens[:, :-1])[..., : self.model.vocab_size].float()
            for row, i in enumerate(chosen):
                ids, scored = cut[i]
                last = slice(len(ids) - 1 - scored, len(ids) - 1)
                targets = tokens[row, 1:][last]
                nats = cross_entropy(logits[row, last].double(), targets, reduction="sum")
                results[i] = (-float(nats), bool((logits[row, last].argmax(-1) == targets).all()))
        return results

    @torch.no_grad()
    def go_on(self, prompt: str, until: Sequence[str], most: int) -> str:
        """Return the greedy continuation of ``prompt``: up to ``most`` tokens, up to the first of ``until``.

        The beginning of the prompt is cut off, so that all ``most`` tokens fit into the context.

        Raises:
            DataError: ``most`` leaves no room for a prompt.
        """
        if most >= self.context:
            raise DataError(
                f"a task asks for {most} tokens (max_gen_toks, {DEFAULT_TOKENS} where it says nothing), and the "
                f"context has {self.context}: expected fewer than {self.context}, so that a prompt fits, too"
            )
        ids, text = (self.encode(prompt) or [self.prefix()])[most - self.context :], ""
        new: list[int] = []
        ahead = Ahead(self.model, 1, len(ids) + most)
        for _ in range(most):
            window = torch.tensor([ids + new], device=self.device)
            token = int(ahead.logits(window)[0].argmax())
            if token == self.tokenizer.eot_id:
                break
            new.append(token)
            text = self.tokenizer.decode(new)
            if any(stop in text for stop in until):
                break
        return text[: min((text.find(stop) for stop in until if stop in text), default=len(text))]


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks that the harness has read."""

    words: str
    """As the user named them, with the option or setting."""
    loaded: Any
    """The harness's tasks and groups, with their documents."""


def load_tasks(tasks: Sequence[str], option: str = "--tasks ", *, shots: int | None = None) -> Tasks:
    """Return ``tasks``, which are names that the harness knows or YAML files of one's own, read by the harness.

    ``option`` stands before their names in messages. ``shots``: solved examples before each question; None: as the
    task says. No network is used.

    Raises:
        ConfigError: the harness is not installed, does not know a task, or a task's data is not on this machine.
    """
    words = f"{option}{','.join(tasks)}"
    with _harness(words):
        files = [Path(task) for task in tasks if task.endswith(YAML)]
        for file in files:
            if not file.is_file():
                raise ConfigError(f"{option}{file}: there is no such file")
        manager = _manager(tasks)
        loaded = manager.load([_name_in(Path(task), option) if Path(task) in files else task for task in tasks])
        for task in loaded["tasks"].values():
            own = task.get_config("num_fewshot")
            # a task that says 0 stays without examples, as in the harness
            if own is None or (shots is not None and own != 0):
                task.set_config(key="num_fewshot", value=shots or 0)
            task.set_fewshot_seed(seed=FEWSHOT_SEED)
    return Tasks(words, loaded)


def refuse_unknown_tasks(tasks: Sequence[str], option: str) -> None:
    """Refuse names that the harness does not know, before a run starts. Files are not read.

    Raises:
        ConfigError: the harness is not installed, or it has no task of a name.
    """
    names = [task for task in tasks if not task.endswith(YAML)]
    if not names:
        return
    with _harness(option):
        known = frozenset(_manager(tasks).all_tasks)
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{option}{name}: the harness has no task of this name{nearest(name, known)}; `lm-eval ls tasks` lists "
                "its names, and a YAML file describes a task of your own"
            )


def _manager(tasks: Sequence[str]) -> Any:
    """Return the harness's index of the tasks in the folders of YAML files, and its own ones if others are named."""
    from lm_eval.tasks import TaskManager

    folders = dict.fromkeys(str(Path(task).parent) for task in tasks if task.endswith(YAML))
    if folders:  # their files may change while the process lives
        defaults = not all(task.endswith(YAML) for task in tasks)
        return TaskManager(include_path=list(folders), include_defaults=defaults)
    return _default_manager()


@cache
def _default_manager() -> Any:
    """Return the index of the harness's own tasks, which takes about 10 s."""
    from lm_eval.tasks import TaskManager

    return TaskManager()


def score_tasks(model: GPT, tokenizer: Tokenizer, tasks: Tasks, *, limit: int | None = None) -> list[TaskScore]:
    """Return every metric of ``tasks``; ``limit``: documents of each (None: all).

    Raises:
        ConfigError: the harness cannot score a task.
        DataError: a text has characters that the tokeniser lacks.
    """
    was_training = model.training
    try:
        with _harness(tasks.words):
            from lm_eval import evaluate

            results = evaluate(
                _adapter(Predictions(model, tokenizer)),
                tasks.loaded,
                limit=limit,
                bootstrap_iters=BOOTSTRAP,
                log_samples=False,
            )
    finally:
        model.train(was_training)
    return list(_scores(results))


def _scores(results: dict[str, Any]) -> Iterator[TaskScore]:
    for task, metrics in results["results"].items():
        documents = results.get("n-samples", {}).get(task, {}).get("effective", 0)
        shots = results.get("n-shot", {}).get(task, 0)
        for name, value in metrics.items():
            metric, _, kind = name.partition(",")
            if not kind or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            stderr = metrics.get(f"{metric}_stderr,{kind}")
            known = stderr if isinstance(stderr, int | float) else None
            yield TaskScore(task, metric, float(value), known, documents, shots)


def _name_in(file: Path, option: str) -> str:
    """Return the name of the task that a file describes; the harness reads the rest.

    Raises:
        ConfigError: the file has no name.
    """
    for line in file.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key == "task" and value.strip():
            return value.strip().strip("'\"")
    raise ConfigError(f"{option}{file}: expected a line `task: NAME`")


@contextmanager
def _harness(words: str) -> Iterator[None]:
    """Run the harness without a network and without its output on the screen.

    Raises:
        ConfigError: it is not installed; or in the place of an error of its own or of ``datasets``, in one line that
            begins with ``words``.
    """
    silent = StringIO()
    remedy = "a task needs its data on this machine, docs/gpt.md shows how a task names local files"
    with (
        mock.patch.dict(os.environ, OFFLINE),
        warnings.catch_warnings(),
        redirect_stdout(silent),
        redirect_stderr(silent),
        in_words(ConfigError, f"{words}: the harness cannot run it; {remedy}"),
    ):
        warnings.simplefilter("ignore")
        try:
            import datasets
            import lm_eval  # noqa: F401
        except ImportError as error:
            option = words.partition("=")[0].split()[0]
            raise ConfigError(f"{option} needs lm-evaluation-harness: pip install 'grok-lab[tasks]'") from error
        datasets.disable_progress_bars()
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)


def _adapter(predictions: Predictions) -> Any:
    """Return ``predictions`` as a model of the harness."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    class Adapter(TemplateLM):  # type: ignore[misc]
        tokenizer_name = "grok"

        @property
        def eot_token_id(self) -> int:
            return predictions.prefix()

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            return predictions.encode(string)

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
            return predictions.score([(context, own) for _, context, own in requests])

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
            totals = []
            for (text,) in (request.args for request in requests):
                ids = predictions.encode(text)
                windows = get_rolling_token_windows(ids, self.prefix_token_id, predictions.context, 1)
                scores = predictions.score([make_disjoint_window(window) for window in windows])
                totals.append(sum(score for score, _ in scores))
            return totals

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
            answers = []
            for prompt, how in (request.args for request in requests):
                known = normalize_gen_kwargs(how, DEFAULT_TOKENS)
                if known["do_sample"]:  # the harness also samples where a task has a temperature and no do_sample
                    raise DataError("a task that samples is not scored: expected greedy generation (do_sample: false)")
                answers.append(predictions.go_on(prompt, known["until"], known["max_gen_toks"]))
            return answers

    return Adapter()


# Tasks of lm-evaluation-harness that a run scores while it trains (``eval.tasks``).


class TaskScores:
    """The tasks that a run scores, and the steps at which it does."""

    def __init__(self, config: GptConfig, due: frozenset[int], *, here: bool) -> None:
        """Read the tasks of a run that is evaluated at the steps ``due``; ``here``: whether this process scores them.

        Every ``eval.tasks_every``-th evaluation scores the tasks, and also the last one.

        Raises:
            ConfigError: the harness is not installed, or it cannot read a task.
        """
        every, tasks = config.eval.tasks_every, config.eval.tasks
        self.steps = frozenset({*sorted(due)[every - 1 :: every], config.train.steps})
        self.tasks = load_tasks(tasks, "eval.tasks=") if tasks and here else None
        self.documents = config.eval.task_documents
        """Largest number of documents of a task; None: all."""

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
