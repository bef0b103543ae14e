"""The run_id of an imported model stays what it was: other runs name it in ``resume.run``."""

from __future__ import annotations

from grok.config import load_config
from grok.config.gpt import GptConfig
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
