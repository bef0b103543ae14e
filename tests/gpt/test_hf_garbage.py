"""A folder that is no model of Hugging Face's is refused in one line, and nothing is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from grok.hf import main as hf_door
from grok.text.corpus import Corpus
from tests.gpt.test_hf_import import their_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("theirs")
    with torch.random.fork_rng():
        their_model(path)
    return path


def weights_of(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def as_index(path: Path, content: Any) -> None:
    (path / "model.safetensors").unlink()
    (path / "model.safetensors.index.json").write_text(json.dumps(content))


HARM: dict[str, Callable[[Path], Any]] = {
    "empty weights": lambda p: (p / "model.safetensors").write_bytes(b""),
    "half the weights": lambda p: (p / "model.safetensors").write_bytes((p / "model.safetensors").read_bytes()[:5000]),
    "a header of 2^60 bytes": lambda p: (p / "model.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}"),
    "weights that are text": lambda p: (p / "model.safetensors").write_text("hello"),
    "a folder of that name": lambda p: ((p / "model.safetensors").unlink(), (p / "model.safetensors").mkdir()),
    "no weights": lambda p: (p / "model.safetensors").unlink(),
    "no settings": lambda p: (p / "config.json").unlink(),
    "settings as a list": lambda p: (p / "config.json").write_text("[]"),
    "settings in no JSON": lambda p: (p / "config.json").write_bytes(b"\xff\xfe{"),
    "settings 100,000 deep": lambda p: (p / "config.json").write_text("[" * 100_000),
    "a tensor is missing": lambda p: weights_of(p, lambda t: t.pop(sorted(t)[3])),
    "a tensor of another shape": lambda p: weights_of(p, lambda t: t.update({sorted(t)[3]: torch.zeros(7)})),
    "a tensor of whole numbers": lambda p: weights_of(
        p, lambda t: t.update({sorted(t)[3]: torch.zeros(t[sorted(t)[3]].shape, dtype=torch.int64)})
    ),
    "weights that are not finite": lambda p: weights_of(p, lambda t: t[sorted(t)[3]].fill_(float("nan"))),
    "a tensor too many": lambda p: weights_of(p, lambda t: t.update({"transformer.h.99.x": torch.zeros(3)})),
    "an index that leads outside": lambda p: as_index(p, {"weight_map": {"x": "../secret.safetensors"}}),
    "a shard that is a pipe": lambda p: (as_index(p, {"weight_map": {"x": "a"}}), os.mkfifo(p / "a")),
    "an index of numbers": lambda p: as_index(p, {"weight_map": {"x": 3}}),
    "an index without a map": lambda p: as_index(p, {"weight_map": []}),
    "an index of nothing": lambda p: as_index(p, {"weight_map": {}}),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_harmed_folder_is_refused_in_one_line(
    folder: Path, corpus: Corpus, tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    harmed = copy_of(folder, tmp_path)
    HARM[harm](harmed)
    assert import_of(harmed, corpus, tmp_path) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1), said.err
    assert len(said.err) < 1500 and not (tmp_path / "store").exists()


def copy_of(folder: Path, room: Path) -> Path:
    (room / "theirs").mkdir()
    for file in folder.iterdir():
        (room / "theirs" / file.name).write_bytes(file.read_bytes())
    return room / "theirs"


def import_of(folder: Path, corpus: Corpus, room: Path) -> int:
    return hf_door(["import", str(folder), "--data", str(corpus.path), "--store", str(room / "store")])
