"""A tokeniser and a text source of one's own: named by the command alone, its hash kept, changed code said."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from grok.__main__ import main
from grok.errors import DataError
from grok.plugins import Code, activate, code_of
from grok.text.corpus import Corpus, open_corpus, refuse_other_tokenizer

EXAMPLE = Path(__file__).parents[2] / "examples" / "words.py"
POEMS = "\n\n".join(f"The moss grows, day {i}.\nSo does the owl's nest." for i in range(40))
PREPARE = "prepare words.verses --input poems.txt --tokenizer words.Words --out C --workers 1".split()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE, tmp_path)
    Path("poems.txt").write_text(POEMS)
    yield
    activate(Code())


def named() -> Corpus:
    activate(code_of(".", ["words.Words"]))
    return open_corpus("C")


def test_a_corpus_of_ones_own_tokens_is_prepared_and_read() -> None:
    assert main(PREPARE) == 0
    corpus = named()
    assert corpus.split("train")["documents"] + corpus.split("val")["documents"] == 40
    documents = corpus.documents("train")
    first = corpus.tokens("train")[documents[0] : documents[1]]
    assert first[-1] == corpus.eot_id == corpus.vocab_size - 1
    assert corpus.tokenizer.decode(first.tolist()) == "The moss grows, day 0.\nSo does the owl's nest.<|endoftext|>"
    assert corpus.tokenizer.encode("moss?").tolist() == [corpus.tokenizer.encode("moss").tolist()[0], 0]
    fingerprint = code_of(".", ["words.Words"]).targets["words.Words"].fingerprint
    assert corpus.manifest["own_code"] == {"words.verses": fingerprint, "words.Words": fingerprint}


def test_a_corpus_names_no_code_to_import() -> None:
    """Opened by a command that names none: ids are there, no text is made, nothing is imported."""
    assert main(PREPARE) == 0
    Path("words.py").write_text("raise SystemExit('imported')")
    activate(Code())
    corpus = open_corpus("C")
    assert corpus.sample("train", 2).startswith("<")
    with pytest.raises(DataError, match=r"name it again, data.tokenizer=words.Words"):
        corpus.tokenizer.encode("moss")
    definition = json.loads(Path("C/tokenizer.json").read_text())
    assert definition["target"] == "words.Words"


def test_changed_code_prepares_anew_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(PREPARE) == 0
    before = open_corpus("C").hash
    capsys.readouterr()
    assert main(PREPARE) == 0
    assert "C is up to date" in capsys.readouterr().out
    Path("words.py").write_text(EXAMPLE.read_text().replace("[:1000]", "[:3]"))
    with pytest.raises(DataError, match=r"words.Words has changed since these tokens were made"):
        named()
    assert main(PREPARE) == 0
    assert "words.Words has changed since" in capsys.readouterr().err
    corpus = named()
    assert corpus.vocab_size == 5 and corpus.hash != before
    assert int(np.max(corpus.tokens("train"))) == 4


def test_ids_out_of_range_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("words.py").write_text(EXAMPLE.read_text().replace("self.ids.get(piece, 0)", "-1"))
    assert main(PREPARE) == 2
    assert "words.Words returned ids from -1 to -1: expected 0 to" in capsys.readouterr().err


def test_a_second_corpus_has_the_same_tokeniser(capsys: pytest.CaptureFixture[str]) -> None:
    """Its file and its code are both named by the command: a file alone chooses no import."""
    assert main(PREPARE) == 0
    again = [
        *PREPARE[: PREPARE.index("--tokenizer")],
        "--workers",
        "1",
        "--out",
        "D",
        "--tokenizer",
        "C/tokenizer.json",
    ]
    assert main(again) == 2
    assert "--tokenizer-code words.Words for `grok prepare`" in capsys.readouterr().err
    Path("poems.txt").write_text(POEMS[: len(POEMS) // 2])
    assert main([*again, "--tokenizer-code", "words.Words"]) == 0
    first, second = named(), open_corpus("D")
    assert first.hash != second.hash and first.tokenizer.hash == second.tokenizer.hash
    refuse_other_tokenizer(second, first)
    fitted = [word if word != "C" else "E" for word in PREPARE]
    assert main(fitted) == 0
    assert main([*fitted, "--tokenizer-code", "words.Words"]) == 2
    named()
    with pytest.raises(DataError, match=r"--tokenizer C/tokenizer\.json --tokenizer-code words\.Words"):
        refuse_other_tokenizer(open_corpus("E"), first)


def test_a_model_trains_on_it_and_writes_text(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(PREPARE) == 0
    words = ["run", "mode=gpt", "experiment=gpt/shakespeare_char", "data.path=C", "store.path=S", "executor=inline"]
    words += ["train.steps=2", "eval.every=2", "model.layers=1", "model.d_model=8", "model.heads=1", "model.context=8"]
    words += ["train.batch_size=2", "numerics.compile=false", "save=final", "eval.sample_tokens=4", "eval.prompt=The"]
    assert main([*words, "seed=1"]) == 0
    assert "data sample: '<" in capfd.readouterr().err, "ids, where nobody names the code"
    assert main([*words, "seed=2", "data.tokenizer=words.Words"]) == 0
    assert 'data sample: "The moss grows, day' in capfd.readouterr().err
    from grok.store import open_store

    runs = open_store("S").runs()
    run_id = runs.set_index("seed")["run_id"][2]
    assert main(["generate", run_id, "--store", "S", "--prompt", "The moss", "--tokenizer", "words.Words"]) == 0
    assert capfd.readouterr().out.startswith("The moss")
    assert main(["generate", run_id, "--store", "S", "--prompt", "The moss"]) == 2
    assert "name it again" in capfd.readouterr().err
