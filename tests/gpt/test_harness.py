"""Tasks of lm-evaluation-harness on local files: its figures are the product's own, and an exported model's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
lm_eval = pytest.importorskip("lm_eval", reason="the extra `tasks` is not installed")

from grok.cli.task_scores import page  # noqa: E402
from grok.cli.trained import TrainedRun  # noqa: E402
from grok.config.gpt import GptConfig  # noqa: E402
from grok.errors import ConfigError, DataError  # noqa: E402
from grok.gpt.evaluate import score_split  # noqa: E402
from grok.gpt.harness import OFFLINE, TaskScore, score_tasks  # noqa: E402
from grok.gpt.hf import save_hf_folder  # noqa: E402
from grok.gpt.model import GPT  # noqa: E402
from grok.text.corpus import Corpus  # noqa: E402
from tests.gpt.conftest import prepare_text, result_of, run, text_of  # noqa: E402

CONTEXT = 32
PAGES = """task: wikitext_sample
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {file}}}}}
output_type: loglikelihood_rolling
validation_split: validation
doc_to_text: ""
doc_to_target: "{{{{page}}}}"
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
  - metric: bits_per_byte
"""
CHOICES = """task: choices
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {file}}}}}
output_type: multiple_choice
validation_split: validation
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{answers}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: " "
metric_list:
  - metric: acc
  - metric: acc_norm
"""


def task_file(folder: Path, text: str, documents: list[dict[str, Any]]) -> str:
    data = folder / "documents.jsonl"
    data.write_text("".join(json.dumps(d) + "\n" for d in documents), encoding="utf-8")
    file = folder / "task.yaml"
    file.write_text(text.format(file=data), encoding="utf-8")
    return str(file)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return prepare_text(tmp_path_factory.mktemp("words"), text_of(1500), tokenizer="byte")


@pytest.fixture
def model(settings: Callable[..., GptConfig], corpus: Corpus) -> GPT:
    """A small model, trained for 60 steps."""
    config = settings(
        data__path=str(corpus.path), train__steps=60, model__context=CONTEXT, eval__sample_tokens=0, save="final"
    )
    weights = result_of(run(config)).tensors["final"]
    model = GPT(config.model, vocab_size=corpus.vocab_size)
    model.load_state_dict({**weights, "head.weight": weights["token_embedding.weight"]})
    return model.eval()


def by_metric(scores: list[TaskScore]) -> dict[str, float]:
    return {s.metric: s.value for s in scores}


def test_bits_per_byte_and_word_perplexity_are_the_products_own(model: GPT, corpus: Corpus, tmp_path: Path) -> None:
    """On a page that is a whole number of contexts, so that the windows of both sides are the same."""
    tokens = [int(i) for i in corpus.tokens("val")]
    lengths = range(CONTEXT, len(tokens), CONTEXT)
    pages = {n: corpus.tokenizer.decode(tokens[:n]) for n in lengths if corpus.eot_id not in tokens[:n]}
    length, page = next((n, page) for n, page in reversed(pages.items()) if page == page.strip())
    assert length > 10 * CONTEXT
    harness = by_metric(score_tasks(model, corpus.tokenizer, [task_file(tmp_path, PAGES, [{"page": page}])]))
    own = score_split(model, corpus, "val", limit=length)
    assert harness["bits_per_byte"] == pytest.approx(own.bits_per_byte, rel=1e-6)
    assert harness["word_perplexity"] == pytest.approx(own.word_perplexity, rel=1e-5)
    assert harness["bits_per_byte"] < 4, "it has learned something"


@pytest.mark.slow
def test_an_exported_model_gets_the_same_figures_from_the_harness_itself(
    model: GPT, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several windows, several documents, a multiple choice: through transformers and through ours."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    pages = [{"page": text_of(n, seed=n).strip()} for n in (3, 40, 90)]
    questions = [
        {"question": "the cat sat on a", "answers": ["mat", "hen by night", "ten"], "label": 0},
        {"question": "one red hen run to", "answers": ["corn ate", "its barn"], "label": 1},
    ]
    (tmp_path / "pages").mkdir(), (tmp_path / "choices").mkdir()
    files = [task_file(tmp_path / "pages", PAGES, pages), task_file(tmp_path / "choices", CHOICES, questions)]
    ours = {(s.task, s.metric): s.value for s in score_tasks(model, corpus.tokenizer, files)}
    save_hf_folder(tmp_path / "hf", model, corpus.tokenizer)
    with torch.random.fork_rng():
        theirs = simple_evaluate(
            HFLM(pretrained=str(tmp_path / "hf"), device="cpu", dtype="float32", batch_size=1),
            tasks=["wikitext_sample", "choices"], bootstrap_iters=0, log_samples=False, random_seed=None,
            numpy_random_seed=None, torch_random_seed=None,
            task_manager=TaskManager(include_path=[str(Path(f).parent) for f in files], include_defaults=False),
        )["results"]  # fmt: skip
    assert {m for _, m in ours} == {"word_perplexity", "byte_perplexity", "bits_per_byte", "acc", "acc_norm"}
    for (task, metric), value in ours.items():
        assert value == pytest.approx(theirs[task][f"{metric},none"], rel=1e-5), (task, metric)


def test_what_cannot_be_scored_is_refused_in_one_line(model: GPT, corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        score_tasks(model, corpus.tokenizer, [str(tmp_path / "none.yaml")])
    with pytest.raises(ConfigError, match="the harness cannot run it"):
        score_tasks(model, corpus.tokenizer, [task_file(tmp_path, PAGES.replace("page", "nothing"), [{"page": "a"}])])
    (tmp_path / "char").mkdir()
    char = prepare_text(tmp_path / "char", text_of(300)).tokenizer
    with pytest.raises(DataError):
        score_tasks(model, char, [task_file(tmp_path, PAGES, [{"page": "ÄÖ"}])])


def test_published_scores_are_told_from_ones_own() -> None:
    scores = {"last": [TaskScore("piqa", "acc", 0.5, 0.1, 10, 0), TaskScore("mine", "acc", 0.25, None, 4, 2)]}
    shown = page(TrainedRun("0123", Path(), {}, None, None), scores)
    ours, _, published = shown.partition("published by others, not computed here")
    assert "piqa" in ours and "mine" in ours and "GPT" not in ours
    assert "GPT-580M  piqa                    acc                     0.6680" in published and "mine" not in published
