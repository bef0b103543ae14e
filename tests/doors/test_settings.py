"""The files in conf/: equal to the dataclasses' defaults, each opening with its command, each able to run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from grok.commands.compose import conf_source
from grok.config import ArithmeticConfig, flatten, load_config, load_configs
from grok.errors import ConfigError
from tests.doors.conftest import Door

CONF = Path(conf_source())
EXPERIMENTS = sorted(file.stem for file in (CONF / "experiment").glob("*.yaml"))


def settings_of(*overrides: str) -> ArithmeticConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = OmegaConf.to_container(compose("config", list(overrides)), resolve=True)
    assert isinstance(composed, dict)
    config = load_config({str(k): v for k, v in composed.items()})
    assert isinstance(config, ArithmeticConfig)
    return config


def test_the_files_say_what_the_code_defaults_to() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = OmegaConf.to_container(compose("config"), resolve=True)
    assert isinstance(composed, dict)
    flat: dict[str, object] = {}

    def walk(node: dict[object, object], prefix: str) -> None:
        for key, value in node.items():
            if isinstance(value, dict) and value:
                walk(value, f"{prefix}{key}.")
            else:
                flat[f"{prefix}{key}"] = value

    walk(dict(composed), "")
    defaults = flatten(ArithmeticConfig())
    assert flat.keys() == defaults.keys() - {"experiment"}, "every setting stands in a file, and nothing else"
    assert flatten(settings_of()) == defaults


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_opens_with_its_own_command_which_plans(door: Door, name: str) -> None:
    lines = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()
    assert lines[0] == "# @package _global_"
    words = shlex.split(lines[1].removeprefix("#"))
    assert words[:2] == ["grok", "sweep"]
    assert f"experiment={name}" in words
    planned = door("-m", *words[2:], "dry_run=true", "store.path=S")
    assert planned.status == 0, planned


def test_jobs_that_share_groups_of_settings_are_checked_as_each_alone() -> None:
    shared = {"lr": 0.5}
    jobs: list[dict[str, Any]] = [{"seed": seed, "optim": shared, "train": {"steps": 3 + seed}} for seed in range(3)]
    jobs.append({"mode": "arithmetic", "seed": 9, "optim": dict(shared), "log": {}})
    configs = load_configs(jobs)
    assert configs == [load_config(job) for job in jobs]
    assert configs[0].optim is configs[1].optim is not configs[3].optim  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"optim\.lr"):
        load_configs([*jobs, {"optim": {"lr": -1}}])
