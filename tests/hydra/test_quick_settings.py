"""The quick copies of settings that the tests' process makes are those of OmegaConf itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from grok.commands.compose import compose
from tests.quick_settings import SLOW_COPIES, copied


def described(node: Any) -> Any:
    """Return all that a node of settings has, without its parents."""
    state = {name: value for name, value in node.__dict__.items() if name not in ("_parent", "_content", "_metadata")}
    content = node.__dict__.get("_content")
    if isinstance(content, dict):
        content = {key: described(value) for key, value in content.items()}
    elif isinstance(content, list):
        content = [described(value) for value in content]
    return type(node), state, dict(vars(node.__dict__["_metadata"])), content


def settings() -> DictConfig:
    made = OmegaConf.create({"list": [1, {"a": "${text}"}], "text": "b", "nothing": None, "missing": "???"})
    made.all = compose(["experiment=quickstart"])
    OmegaConf.set_struct(made, True)
    OmegaConf.set_readonly(made.list, True)
    return made


def test_a_copy_is_omegaconfs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = settings()
    quick = copy.deepcopy(made)
    for kind, own in SLOW_COPIES.items():
        monkeypatch.setattr(kind, "__deepcopy__", own)
    assert described(copied(made)) == described(quick) == described(copy.deepcopy(made))
    assert quick == made and quick.list[1].a == "b"
    assert all(child._get_parent() is quick for child in (quick._get_node("list"), quick._get_node("text")))
