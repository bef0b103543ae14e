"""The GPT benchmark compares like with like: the same model, and a page for each kind of device."""

from __future__ import annotations

import pytest
import torch

from benchmarks import device_stages, gpt
from benchmarks.harness import Contender
from benchmarks.our_gpt import our_config
from benchmarks.plain_gpt import SHAPES, PlainGPT
from grok.gpt.model import parameter_count
from grok.text.corpus import Corpus
from grok.text.preparation import Request, prepare


@pytest.fixture(scope="module")
def fables(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    out = tmp_path_factory.mktemp("corpora") / "fables"
    return prepare(Request(form="fables", inputs=("60:0",), out=out, tokenizer="char"))[0]


@pytest.mark.parametrize("name", SHAPES)
def test_both_loops_train_the_same_model(name: str, fables: Corpus) -> None:
    shape = SHAPES[name]
    with torch.device("meta"):
        plain = PlainGPT(shape, 50_257, torch.Generator())
    config = our_config(shape, fables, 1, 20, "float32", False)
    ours = parameter_count(config.model, vocab_size=50_257)
    assert sum(p.numel() for p in plain.parameters()) == ours
    if name == "gpt2":
        assert ours == 124_439_808 - (12 * (3 + 1 + 4 + 1 + 2) + 1) * 768  # GPT-2 without its biases
        bytewise = parameter_count(config.model, vocab_size=257)  # the device's day has no other tokeniser
        assert f"({bytewise / 1e6:.0f} million parameters" in (device_stages.gpt.__doc__ or "")


def measured(name: str, ms: float) -> Contender:
    ours = {"data_wait": 0.004, "checkpoint_seconds": 0.05} if name.startswith("ours") else {}
    contender = Contender(gpt.Served, [], name=name)
    contender.times = [9e-3 * ms, 1e-3 * ms, 1e-3 * ms]
    contender.last = [{"val_loss": 1.7, "memory": 400.0, **ours}]
    return contender


def page(corpus: Corpus, names: dict[str, float], *words: str) -> str:
    arguments = gpt.arguments_of(["--data", str(corpus.path), *words])
    return gpt.page([measured(name, ms) for name, ms in names.items()], arguments)


def test_the_page_says_what_was_measured_on_which_data(fables: Corpus) -> None:
    text = page(fables, {"plain loop": 60.0, "ours, float32": 40.0})
    assert f"Data: fables, {fables.vocab_size} ids, corpus {fables.hash}." in text
    shape = SHAPES["char"]
    parameters = parameter_count(our_config(shape, fables, 1, 20, "float32", False).model, vocab_size=fables.vocab_size)
    assert f"{parameters:,} parameters" in text
    assert "| ours, float32 | 40.0 | 19,200 |" in text and "| 1.50 (1.50 to 1.50) |" in text


def test_only_known_names_with_one_of_ours_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    for names, message in (("ours, flaot32", "'ours, flaot32': expected"), ("plain loop", "needs one of ours")):
        with pytest.raises(SystemExit):
            gpt.arguments_of(["--data", "DIR", "--only", names])
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("device", "peak"),
    [("NVIDIA H100 80GB HBM3", "989"), ("NVIDIA H100 PCIe", None), ("NVIDIA GeForce RTX 4090", "165")],
)
def test_a_share_of_the_peak_is_that_of_this_form(
    device: str, peak: str | None, fables: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpt, "device_model", lambda _: device)
    text = page(fables, {"plain loop, bf16, compiled": 60.0, "ours, bf16, compiled": 40.0}, "--device", "cuda")
    assert ("MFU" in text) is (peak is not None)
    assert peak is None or f"% of {peak} TFLOP/s" in text
