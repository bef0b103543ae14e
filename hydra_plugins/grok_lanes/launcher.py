"""Runs a sweep's jobs: as one plan where the task function takes plans, else one by one as Hydra does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol, cast, runtime_checkable

from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from hydra_plugins.grok_lanes._compose import Composer, Plain
from hydra_plugins.grok_lanes._nodes import register

register()


@runtime_checkable
class PlanTask(Protocol):
    """A task function that can take all jobs of a sweep at once."""

    def run_plan(self, settings: Sequence[Plain]) -> Sequence[str | Exception]:
        """Run every job; return for each the name of its run, or the error that it ended with."""
        ...


def _returned(overrides: Sequence[str], result: str | Exception) -> JobReturn:
    """Return what Hydra keeps of a job, without its config: nobody asks for those of thousands of jobs."""
    status = JobStatus.FAILED if isinstance(result, Exception) else JobStatus.COMPLETED
    return JobReturn(overrides=[str(o) for o in overrides], task_name="run", status=status, _return_value=result)


def _callbacks_of_jobs(callbacks: Callbacks) -> list[str]:
    """Return the methods of the user's callbacks that Hydra's launchers call for each job."""
    own = [type(callback) for callback in callbacks.callbacks]
    methods = ("on_job_start", "on_job_end")
    return [name for name in methods if any(getattr(c, name, None) is not getattr(Callback, name) for c in own)]


def refuse_what_jobs_have(config: DictConfig) -> None:
    """Refuse settings of Hydra's jobs: a plan has none, so it would ignore them.

    Raises:
        HydraException: one of them is set.
    """
    for name, remedy in (
        ("sweeper.max_batch_size", "workers=N and lanes=N bound how many train at once"),
        ("job.env_set", "set the variables of the whole command: FOO=1 grok sweep ..."),  # env_copy sets it, too
        ("job.chdir", "all results go to store.path"),
    ):
        if OmegaConf.select(config.hydra, name):
            raise HydraException(f"hydra.{name}: the runs of a sweep are one plan and train together; {remedy}")


class GrokLanesLauncher(BasicLauncher):
    """Hydra's BasicLauncher for any task function but those that take plans (:class:`PlanTask`)."""

    def takes_plans(self) -> bool:
        """Return whether the task function wants all jobs at once."""
        return isinstance(self.task_function, PlanTask)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Return one JobReturn per job, in order.

        Raises:
            HydraException: Hydra's settings ask of each job what a plan cannot do.
        """
        if not self.takes_plans():
            return super().launch(job_overrides, initial_job_idx)
        setup_globals()
        assert self.hydra_context is not None
        assert self.config is not None
        refuse_what_jobs_have(self.config)
        if names := _callbacks_of_jobs(self.hydra_context.callbacks):
            print(
                f"Note: a sweep trains its runs together, so {' and '.join(names)} of your "
                "hydra.callbacks will not be called; log.plugin is called for each run",
                file=sys.stderr,
            )
        composer = Composer(cast(Any, self.hydra_context.config_loader), self.config)
        settings = [composer.compose(job, initial_job_idx + i) for i, job in enumerate(job_overrides)]
        results = cast(PlanTask, self.task_function).run_plan(settings)
        return [_returned(overrides, result) for overrides, result in zip(job_overrides, results, strict=True)]
