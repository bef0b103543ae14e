"""Tasks of lm-evaluation-harness on local files: its figures are the product's own, and an exported model's."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
lm_eval = pytest.importorskip("lm_eval", reason="the extra `tasks` is not installed")

from grok.config.gpt import GptConfig  # noqa: E402
from grok.errors import ConfigError  # noqa: E402
from grok.evaluate import page, record  # noqa: E402
from grok.execute.refusals import refuse_unusable_tasks  # noqa: E402
from grok.gpt.evaluate import score_split  # noqa: E402
from grok.gpt.generate import Sampler, generate  # noqa: E402
from grok.gpt.harness import OFFLINE, Predictions, TaskScore, _adapter, load_tasks, score_tasks  # noqa: E402
from grok.gpt.hf import save_hf_folder  # noqa: E402
from grok.gpt.model import GPT  # noqa: E402
from grok.text.corpus import Corpus  # noqa: E402
from tests.gpt.conftest import prepare_text, result_of, run, small, stopped, text_of  # noqa: E402

CONTEXT = 32
DATA = """dataset_path: json
dataset_kwargs: {{data_files: {{validation: {file}}}}}
validation_split: validation
"""
PAGES = """task: wikitext_sample
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{page}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}, {{metric: bits_per_byte}}]
"""
CHOICES = """task: choices
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{answers}}}}"
doc_to_target: "{{{{label}}}}"
target_delimiter: " "
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


def task_file(folder: Path, text: str, documents: list[dict[str, Any]]) -> str:
    data = folder / "documents.jsonl"
    data.write_text("".join(json.dumps(d) + "\n" for d in documents), encoding="utf-8")
    file = folder / "task.yaml"
    file.write_text((DATA + text).format(file=data), encoding="utf-8")
    return str(file)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Two documents, the second one for validation: both sides put the end of a document before a page."""
    text = text_of(1500) + "<|endoftext|>" + text_of(300, 2)
    return prepare_text(tmp_path_factory.mktemp("words"), text, tokenizer="byte")


@pytest.fixture(scope="module")
def model(corpus: Corpus) -> GPT:
    config = small(corpus.path, train__steps=60, model__context=CONTEXT, eval__sample_tokens=0, save="final")
    weights = result_of(run(config)).tensors["final"]
    model = GPT(config.model, vocab_size=corpus.vocab_size)
    model.load_state_dict({**weights, "head.weight": weights["token_embedding.weight"]})
    return model.eval()


def test_bits_per_byte_and_word_perplexity_are_the_products_own(model: GPT, corpus: Corpus, tmp_path: Path) -> None:
    """On a page that is a whole number of contexts, so that the windows of both sides are the same."""
    tokens = [int(i) for i in corpus.tokens("val")]
    lengths = range(CONTEXT, len(tokens), CONTEXT)
    pages = {n: corpus.tokenizer.decode(tokens[:n]) for n in lengths if corpus.eot_id not in tokens[:n]}
    length, page = next((n, page) for n, page in reversed(pages.items()) if page == page.strip())
    assert length > 10 * CONTEXT
    scores = score_tasks(model, corpus.tokenizer, load_tasks([task_file(tmp_path, PAGES, [{"page": page}])]))
    harness = {s.metric: s.value for s in scores}
    own = score_split(model, corpus, "val", limit=length)
    assert harness["bits_per_byte"] == pytest.approx(own.bits_per_byte, rel=1e-6)
    assert harness["word_perplexity"] == pytest.approx(own.word_perplexity, rel=1e-5)
    assert harness["bits_per_byte"] < 4, "it has learned something"


@pytest.mark.parametrize("value", [0.25, 999_999.0, 2.5e9])
def test_a_value_and_its_error_are_columns_of_their_own(value: float) -> None:
    score = TaskScore("task", "metric", value, value, 10, 0)
    row = page(record(SimpleNamespace(run_id="r"), {"final": [score]})).splitlines()[-1].split()
    assert [float(cell) for cell in row[3:5]] == [value, value]


def test_tasks_are_scored_while_a_run_trains(
    settings: Callable[..., GptConfig], corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = text_of(30, 5).strip()
    file = task_file(tmp_path, PAGES, [{"page": page}, {"page": page[:40].strip()}])
    common = {"data__path": str(corpus.path), "train__steps": 11, "eval__every": 2, "eval__sample_tokens": 0}
    config = settings(**common, eval__tasks=[file], eval__tasks_every=2, log__quiet=False, save="final")
    result = result_of(run(config))
    plain = result_of(run(settings(**common, save="final")))
    assert result.weights_hash == plain.weights_hash
    scored = {p.step: p.metrics for p in result.curve if p.metrics}
    assert list(scored) == [4, 8, 11]
    names = {f"task.wikitext_sample.{m}" for m in ("word_perplexity", "byte_perplexity", "bits_per_byte")}
    assert names <= scored[11].keys()
    model = GPT(config.model, vocab_size=corpus.vocab_size)
    weights = result.tensors["final"]
    model.load_state_dict({**weights, "head.weight": weights["token_embedding.weight"]})
    for s in score_tasks(model, corpus.tokenizer, load_tasks([file])):
        assert scored[11][f"task.wikitext_sample.{s.metric}"] == pytest.approx(s.value, rel=1e-6)
    half = stopped(config, 5)
    assert {p.step: p.metrics for p in result_of(run(config, resume=half)).curve if p.metrics} == scored
    one = result_of(run(settings(**common, eval__tasks=[file], eval__task_documents=1))).curve[-1].metrics
    assert one != scored[11]


def test_tasks_that_cannot_be_read_are_refused_before_training(
    settings: Callable[..., GptConfig], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"eval\.tasks=.*none\.yaml: there is no such file"):
        refuse_unusable_tasks([settings(eval__tasks=[str(tmp_path / "none.yaml")])])
    file = task_file(tmp_path, PAGES, [{"page": "a"}])
    (tmp_path / "documents.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"eval\.tasks=.*task\.yaml: the harness cannot run it"):
        run(settings(eval__tasks=[file]))


@pytest.mark.slow
def test_an_exported_model_gets_the_same_figures_from_the_harness_itself(
    model: GPT, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    ours = {(s.task, s.metric): s.value for s in score_tasks(model, corpus.tokenizer, load_tasks(files))}
    save_hf_folder(tmp_path / "hf", model, corpus.tokenizer)
    with torch.random.fork_rng():
        exported = HFLM(pretrained=str(tmp_path / "hf"), device="cpu", dtype="float32", batch_size=1)
        for prompt, how in ((text_of(40), {"max_new_tokens": 12, "until": ["\n"]}), ("the", {"max_gen_toks": 20})):
            (answer,) = exported.generate_until([SimpleNamespace(args=(prompt, how))])
            assert continued(model, corpus, prompt, how) == answer
        theirs = simple_evaluate(
            exported,
            tasks=["wikitext_sample", "choices"], bootstrap_iters=0, log_samples=False, random_seed=None,
            numpy_random_seed=None, torch_random_seed=None,
            task_manager=TaskManager(include_path=[str(Path(f).parent) for f in files], include_defaults=False),
        )["results"]  # fmt: skip
    assert {m for _, m in ours} == {"word_perplexity", "byte_perplexity", "bits_per_byte", "acc", "acc_norm"}
    for (task, metric), value in ours.items():
        assert value == pytest.approx(theirs[task][f"{metric},none"], rel=1e-5), (task, metric)


def continued(model: GPT, corpus: Corpus, prompt: str, how: dict[str, Any]) -> str:
    """Return what the harness gets for a prompt of a task with the generation settings ``how``."""
    (answer,) = _adapter(Predictions(model, corpus.tokenizer)).generate_until([SimpleNamespace(args=(prompt, how))])
    return str(answer)


@pytest.mark.parametrize("name", ["max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"])
def test_a_prompt_is_cut_so_that_its_continuation_fits(model: GPT, corpus: Corpus, name: str) -> None:
    """Once, as in the harness's own models: not again at each token. Each of its names for the length counts."""
    draws, model = torch.Generator().manual_seed(0), copy.deepcopy(model)
    with torch.no_grad():  # weights that give another token at each position
        for p in model.parameters():
            p.normal_(generator=draws)
    prompt = text_of(40)
    ids = corpus.tokenizer.encode(prompt)[-(CONTEXT - 12) :]
    (expected,) = generate(model, [[int(i) for i in ids]], tokens=12, sampler=Sampler(temperature=0), seed=0)
    read: list[int] = []
    hook = model.token_embedding.register_forward_hook(lambda _, args, out: read.append(args[0].numel()))
    got = continued(model, corpus, prompt, {name: 12, "until": ["#"], "temperature": 0.7, "do_sample": False})
    hook.remove()
    assert read == [len(ids)] + [1] * (len(read) - 1), "keys and values of the text so far are cached"
    assert got == corpus.tokenizer.decode(expected.ids) and len(expected.ids) == 12
