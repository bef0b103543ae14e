"""The four commands as people use them, and as docs/gpt.md shows them."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from grok import evaluate, generate, prepare
from grok import run as train
from grok.checkpoints import run_folder, save_checkpoint
from grok.commands.trained import find_run
from grok.config.gpt import EvalConfig, GptConfig, ModelConfig, TrainConfig
from grok.errors import DataError
from grok.gpt.training.engine import train as engine
from grok.records import Checkpoint, Job
from grok.store import open_store
from grok.text.corpus import Corpus, open_corpus
from grok.text.preparation import Request
from grok.text.preparation import prepare as prepare_corpus
from tests.docs.pages import ROOT, commands

TINY = (
    "mode=gpt", "experiment=gpt/shakespeare_char", "model.layers=1", "model.d_model=16", "model.heads=2",
    "model.context=32", "train.batch_size=4", "eval.windows=4", "eval.sample_tokens=0", "numerics.compile=false",
    "train.threads=1", "executor=inline", "workers=1", "log.quiet=true",
)  # fmt: skip


@dataclass(frozen=True)
class Trained:
    store: Path
    data: Path
    run_id: str
    alibi: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """Two runs of six steps on 200 fables, one with learned positions and one with ALiBi."""
    folder = tmp_path_factory.mktemp("trained")
    data, store = folder / "fables", folder / "store"
    argv = ["fables", "--input", "200", "--tokenizer", "char", "--out", str(data), "--workers", "1"]
    assert prepare.main(argv) == 0
    common = [*TINY, f"data.path={data}", f"store.path={store}", "train.steps=6", "eval.every=3"]
    assert train.main(common) == 0
    assert train.main([*common, "model.positions=alibi"]) == 0
    rows = open_store(store).table("runs", None, ["config.model.positions"]).to_pylist()
    by_positions = {row["config.model.positions"]: row["run_id"] for row in rows}
    yield Trained(store, data, by_positions["learned"], by_positions["alibi"])


def test_scores_of_all_kept_weights(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "scores.json"
    assert evaluate.main([trained.run_id[:6], "--store", str(trained.store), "--out", str(out)]) == 0
    page = capsys.readouterr().out
    found = json.loads(out.read_text())
    assert list(found["scores"]) == ["last", "best", "average"]  # the average stands beside the others
    corpus = open_corpus(trained.data)
    for which, score in found["scores"].items():
        assert f"{score['loss']:.4f}" in page and which in page
        assert score["tokens_scored"] == corpus.split("val")["tokens"]
        assert score["words"] == corpus.split("val")["words"] and score["bytes"] == corpus.split("val")["bytes"]
    assert found["data_hash"] == corpus.hash and found["context"] == 32 and found["stride"] is None
    folder = str(run_folder(trained.store, trained.run_id))
    assert evaluate.main([folder, "--weights", "last"]) == 0


def test_a_run_in_flight_can_be_looked_at(trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ModelConfig(layers=1, d_model=16, heads=2, context=32)
    config = GptConfig(
        mode="gpt", experiment="gpt/shakespeare_char", device="cpu", save="final", model=model,
        train=TrainConfig(steps=50, batch_size=2, threads=1), eval=EvalConfig(every=2, windows=2, sample_tokens=0),
    )  # fmt: skip
    config.data.path, config.numerics.compile, config.log.quiet = str(trained.data), False, True
    asked = iter([False] * 4)
    events = list(engine([Job(run_id="inflight", config=config)], stop=lambda: next(asked, True)))
    (checkpoint,) = [event for event in events if isinstance(event, Checkpoint)]
    save_checkpoint(tmp_path / "inflight", checkpoint)
    assert evaluate.main([str(tmp_path / "inflight"), "--limit", "100"]) == 0  # it knows where its data is
    capsys.readouterr()
    checkpoint.state["data_path"] = None
    save_checkpoint(tmp_path / "elsewhere", checkpoint)
    assert evaluate.main([str(tmp_path / "elsewhere")]) == 2
    assert "give --data DIR" in capsys.readouterr().err
    assert evaluate.main([str(tmp_path / "inflight"), "--data", str(trained.data), "--split", "train"]) == 0
    look = [str(tmp_path / "inflight"), "--data", str(trained.data), "--tokens", "5"]
    assert generate.main(look) == 0
    capsys.readouterr()
    assert generate.main([*look, "--weights", "average"]) == 2  # asked for by name, and not replaced by others
    assert "kept no average weights, but last" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("door", "argv", "message"),
    [
        (evaluate, ["zzz"], "fits none of the 2 language models"),
        (evaluate, [""], "neither a folder nor a run_id"),
        (evaluate, ["RUN", "--split", "test"], "no split 'test': it has train, val"),
        (evaluate, ["RUN", "--data", "nowhere"], "no prepared corpus"),
        (evaluate, ["RUN", "--stride", "4"], "--stride 4 needs --windows sliding"),
        (evaluate, ["RUN", "--windows", "sliding", "--stride", "99"], "--stride 99: expected a whole number from 1"),
        (evaluate, ["RUN", "--context", "0"], "--context 0: expected a whole number, at least 1"),
        (generate, ["RUN", "--prompt", "日本"], "characters of the text are not among"),
        (generate, ["RUN", "--prompt", "caf\udce9"], "has a character that is no Unicode text"),
        (generate, ["RUN", "--temperature", "-1"], "--temperature -1"),
        (generate, ["RUN", "--top-p", "2"], "--top-p 2"),
        (generate, ["RUN", "--seed", "-1"], "--seed -1: expected a whole number"),
        (generate, ["RUN", "--tokens", "0"], "--tokens 0"),
        (generate, ["RUN", "--tokens", "2147483648000"], "--tokens 2147483648000"),
        (generate, ["RUN", "--prompt-file", "absent.txt"], "cannot be read"),
    ],
)
def test_what_is_impossible_is_refused(
    trained: Trained, door: ModuleType, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [trained.run_id if word == "RUN" else word for word in argv]
    assert door.main([*given, "--store", str(trained.store)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_data_of_another_tokeniser_is_refused(
    trained: Trained, tmp_path: Path, fables: Corpus, capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(tmp_path / "bytes")
    assert prepare.main(["fables", "--input", "20:5", "--tokenizer", "byte", "--out", other]) == 0
    capsys.readouterr()
    assert evaluate.main([trained.run_id, "--store", str(trained.store), "--data", other]) == 2
    same = str(tmp_path / "same")
    argv = ["fables", "--input", "20:5", "--tokenizer", str(trained.data / "tokenizer.json"), "--out", same]
    assert prepare.main(argv) == 0
    assert evaluate.main([trained.run_id, "--store", str(trained.store), "--data", same]) == 0


def test_a_corpus_that_was_prepared_anew_is_not_scored_as_the_runs_own(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its ids can mean other characters, which the number of ids does not show."""
    data = tmp_path / "fables"
    shutil.copytree(trained.data, data)
    run = dataclasses.replace(find_run(trained.run_id, str(trained.store)), data_path=str(data))
    assert run.corpus().hash == run.data_hash
    argv = ["fables", "--input", "200", "--tokenizer", "char", "--out", str(data), "--workers", "1"]
    assert prepare.main([*argv, "--val-fraction", "0.3"]) == 0
    capsys.readouterr()
    with pytest.raises(DataError, match=r"is not the corpus that run \w+ was trained on .*--data DIR"):
        run.corpus()
    assert run.corpus(str(data)).hash != run.data_hash
    assert capsys.readouterr().err.startswith(f"note: {data} is not the corpus that run {run.run_id} was trained on")
    assert run.corpus(str(trained.data)).hash == run.data_hash


def test_preparing_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("some text, and more of it. " * 40)
    (tmp_path / "b.txt").write_text("some other text. " * 20)
    out = str(tmp_path / "out")
    argv = ["text", "--input", str(tmp_path / "a.txt"), "--split-file", f"test={tmp_path / 'b.txt'}"]
    assert prepare.main([*argv, "--tokenizer", "byte", "--out", out]) == 0
    capsys.readouterr()
    assert prepare.main([*argv, "--tokenizer", "byte", "--out", out]) == 0
    for change, message in (
        (["--split-file", "dev=x"], "expected val=FILE or test=FILE"),
        (["--workers", "0"], "--workers 0"),
        (["--workers", "4097"], "at least 1 and at most 4096"),
        (["--val-fraction", "2"], "--val-fraction 2"),
    ):
        assert prepare.main([*argv, "--tokenizer", "byte", "--out", out, *change]) == 2
        assert message in capsys.readouterr().err
    assert prepare.main(["text", "--input", "absent.txt", "--tokenizer", "char", "--out", out]) == 2
    assert "absent.txt: no such file or folder" in capsys.readouterr().err


PAGE = (ROOT / "docs/gpt.md").read_text(encoding="utf-8")


def test_the_first_command_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = next(c.words for c in commands(ROOT / "docs/gpt.md") if c.words[2:4] == ("grok.prepare", "fables"))
    assert prepare.main([*words[3:]]) == 0
    shown = re.search(r"````text\n(.*?)````", PAGE, re.DOTALL)
    assert shown is not None
    printed = capsys.readouterr().out
    assert [part for part in shown[1].split("...\n") if part.strip() not in printed] == []


def test_the_table_of_counts(samples: Callable[[str], Path], tmp_path: Path) -> None:
    valid, test = (samples(f"wikitext/wiki.{name}.tokens") for name in ("valid", "test"))
    stories, vocab = samples("tinystories/TinyStoriesV2-sample.txt"), samples("gpt2")
    rows = (
        Request(form="wikitext", inputs=(str(valid),), split_files={"test": (str(test),)}, out=tmp_path / "w",
                tokenizer="gpt2", vocab=vocab),
        Request(form="tinystories", inputs=(str(stories),), out=tmp_path / "s", tokenizer="bpe", vocab_size=4096),
    )  # fmt: skip
    for request in rows:
        corpus, _ = prepare_corpus(request)
        counts = " | ".join(f"{corpus.split(name)['tokens']:,}" for name in corpus.splits)
        assert f"| {counts} |" in PAGE, counts
