"""The run_id of an imported model stays what it was: other runs name it in ``resume.run``."""

from __future__ import annotations

import warnings

import pytest

from grok.config import load_config
from grok.config.gpt import GptConfig, ModelConfig
from grok.gpt.hf.folder import Source, with_source
from grok.hf import imported_run_id

SETTINGS = {"mode": "gpt", "experiment": "gpt/imported", "data": {"path": "corpus"}, "model": {"vocab_size": 50}}


def test_an_import_keeps_its_run_id() -> None:
    """The literal is from the version in which the command was new. A new setting belongs into ``_ADDED``."""
    config = load_config({**SETTINGS, "numerics": {"compile": False}})
    assert isinstance(config, GptConfig)
    assert imported_run_id("weights", "corpus", config) == "74a93919fe33f5769842"
    changed = load_config({**SETTINGS, "numerics": {"compile": False}, "model": {"vocab_size": 51}})
    assert isinstance(changed, GptConfig)
    assert imported_run_id("weights", "corpus", changed) != "74a93919fe33f5769842"


@pytest.mark.parametrize(("asked", "theirs", "result"), [(1024, 2048, 2048), (1000, 2048, 1000), (1024, 512, 512)])
def test_a_default_context_that_the_folder_replaces_is_said(asked: int, theirs: int, result: int) -> None:
    """Nobody can tell model.context=1024 from no model.context, so a folder of 2,048 positions keeps all of them."""
    config = load_config({"mode": "gpt", "init_from": "F", "model": {"context": asked}})
    assert isinstance(config, GptConfig)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert with_source(config, Source(ModelConfig(context=theirs), "0" * 64)).model.context == result
    text = "init_from=F: model.context=2048 is the folder's; 1024 is the default and counts as not given"
    assert [text in str(one.message) for one in heard] == [True] * (result == 2048)
