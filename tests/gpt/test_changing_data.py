"""A run keeps to the data that names it, whatever happens to the folder meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grok.config.gpt import GptConfig
from grok.errors import DataError
from grok.gpt.training.engine import train
from grok.records import Job, Progress, RunResult

from .conftest import RUN, prepare_text, result_of, run, text_of

Build = Callable[..., GptConfig]


def test_a_new_corpus_in_the_same_folder_does_not_move_a_run_in_flight(settings: Build, tmp_path: Path) -> None:
    corpus = prepare_text(tmp_path, text_of(600))
    config = settings(data__path=str(corpus.path))
    undisturbed = [p.val_loss for p in result_of(run(config)).curve]
    losses = []
    for event in train([Job(run_id=RUN, config=config)]):
        if isinstance(event, Progress) and event.step < 10:
            prepare_text(tmp_path, text_of(600, seed=2))
        if isinstance(event, RunResult):
            losses = [p.val_loss for p in event.curve]
    assert losses == undisturbed


def test_tokens_overwritten_in_place_end_the_run_with_a_reason(settings: Build, tmp_path: Path) -> None:
    corpus = prepare_text(tmp_path, text_of(600))
    events = train([Job(run_id=RUN, config=settings(data__path=str(corpus.path)))])
    next(events)
    file = corpus.path / "train.bin"
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    with file.open("r+b") as opened:
        opened.write(content)
    with pytest.raises(DataError, match=r"train\.bin was overwritten while it was in use"):
        list(events)
