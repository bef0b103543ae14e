"""Hydra's own launcher suite, run against this project's sweeper and launcher with foreign task functions."""

from typing import Any

import pytest
from hydra.test_utils.launcher_common_tests import (
    BatchedSweeperTestSuite,
    IntegrationTestSuite,
    LauncherTestSuite,
)

CHDIR = ["hydra.job.chdir=True"]
"""The suite looks for each job's files in its working directory."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher_name, overrides", [("grok_lanes", CHDIR), ("grok_lanes", ["hydra/sweeper=grok_lanes", *CHDIR])]
)
class TestLauncher(LauncherTestSuite):
    pass


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher_name, overrides",
    [("grok_lanes", ["hydra.sweeper.max_batch_size=2", *CHDIR])],
)
class TestLauncherBatched(BatchedSweeperTestSuite):
    pass


@pytest.mark.slow
@pytest.mark.parametrize(
    "task_launcher_cfg, extra_flags",
    [({}, ["-m", "hydra/launcher=grok_lanes"]), ({}, ["-m", "hydra/launcher=grok_lanes", "hydra/sweeper=grok_lanes"])],
)
class TestLauncherIntegration(IntegrationTestSuite):
    pass


def test_a_foreign_sweep_by_both_plugins(hydra_sweep_runner: Any, tmpdir: Any) -> None:
    sweep = hydra_sweep_runner(
        calling_file=None,
        calling_module="hydra.test_utils.a_module",
        task_function=lambda config: config.foo * config.bar,
        config_path="configs",
        config_name="compose.yaml",
        overrides=[
            "hydra/launcher=grok_lanes",
            "hydra/sweeper=grok_lanes",
            "group1=file1,file2",
            "bar=range(1,4)",
            *CHDIR,
        ],
        temp_dir=tmpdir,
    )
    with sweep:
        (jobs,) = sweep.returns
        assert [job.return_value for job in jobs] == [10, 20, 30, 20, 40, 60]
