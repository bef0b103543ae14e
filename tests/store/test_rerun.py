"""The re-run command gives the same run again, through the shell and Hydra's grammar."""

import shlex
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from grok.config import RunConfig, identify, load_config
from grok.config.arithmetic import OPERATIONS
from grok.config.values import literal
from grok.store.provenance import overrides, rerun_command
from grok.streams import STREAMS


def parse(command: str) -> dict[str, Any]:
    """Return the nested settings that the shell and Hydra's parser make of a command."""
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "grok.run"]
    given: dict[str, Any] = {}
    for override in OverridesParser.create().parse_overrides(words[3:]):
        inner = given
        *groups, name = override.key_or_group.split(".")
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = override.value()
    return given


def rerun(config: RunConfig) -> RunConfig:
    return load_config(parse(rerun_command(config)))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_survives_the_quoting(operation: str) -> None:
    modulus = 120 if operation in ("ab", "aba", "aba^-1") else 97
    config = load_config({"seed": 4, "task": {"operation": operation, "modulus": modulus}, "train": {"steps": 50}})
    assert identify(rerun(config)) == identify(config)


def test_every_stream_is_pinned() -> None:
    config = load_config({"seed": 7, "seeds": {"init": 2**63 - 1, "layers": {"blocks.1": 3, "head.weight": 9}}})
    given = parse(rerun_command(config))["seeds"]
    assert {name: given[name] for name in ("split", "init", "order")} == {
        "split": config.stream_seeds().split,
        "init": 2**63 - 1,
        "order": config.stream_seeds().order,
    }
    assert given["layers"] == {"blocks.1": 3, "head.weight": 9}
    assert given.keys() == {*STREAMS, "layers"}


def test_what_only_concerns_the_first_command_is_left_out() -> None:
    config = load_config({"store": {"path": "/data/$HOME/x"}, "workers": 3, "force": True, "experiment": "quickstart"})
    words = ("store.path", "workers", "force", "experiment")
    assert not [word for word in words if word in rerun_command(config)]


def test_a_gpt_run_names_its_preset_and_every_setting_that_counts() -> None:
    config = load_config({"mode": "gpt", "experiment": "gpt/shakespeare_char", "data": {"path": "/data/a b/'c'"}})
    again = rerun(config)
    assert (again.mode, again.experiment) == ("gpt", "gpt/shakespeare_char")
    assert identify(again, "data") == identify(config, "data")
    assert "model.layers=" in rerun_command(config)  # a default, which the preset may move


def test_a_command_has_one_length() -> None:
    """The plan makes steps of a length in epochs; a command with both is refused."""
    train = {"epochs": 2, "steps": 7}
    words = overrides(load_config({"mode": "gpt", "experiment": "gpt/shakespeare_char", "train": train}))
    assert "train.steps=7" in words and not any(word.startswith("train.epochs") for word in words)


printable = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=30) | st.text("a\\${}'\"", max_size=8)
values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), printable)


@given(value=st.one_of(values, st.lists(values, max_size=4)))
@settings(max_examples=200, deadline=None)
def test_any_value_comes_back_through_hydra(value: Any) -> None:
    parsed = OverridesParser.create().parse_override(f"key={literal(value)}").value()
    found = OmegaConf.to_container(OmegaConf.create({"key": parsed}), resolve=True)["key"]  # type: ignore[index, call-overload]
    assert found == value
    assert type(found) is type(value)
