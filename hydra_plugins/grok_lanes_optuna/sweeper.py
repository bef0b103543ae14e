"""Searches over Hydra's sweep syntax: ``choice``, ``range`` and ``interval`` (with ``tag(log, ...)``) make the space.

    grok sweep hydra/sweeper=lanes_optuna +study=base experiment=toy \\
        'optim.lr=tag(log,interval(1e-3,5e-2))' optim.weight_decay=0.1,0.5,1 study.trials=20 study.seeds=8

The study's own settings are those of ``grok search``; ``+study=NAME`` takes them and
a space from ``conf/study/NAME.yaml``, ``+study=base`` has no space of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hydra_plugins.grok_lanes._compose import Composer
from hydra_plugins.grok_lanes.launcher import GrokLanesLauncher, PlanTask, refuse_what_jobs_have
from hydra_plugins.grok_lanes.sweeper import count, number_of

if TYPE_CHECKING:
    from grok.store import Purposes
    from sweeps.search.driver import Train

ConfigStore.instance().store(
    group="hydra/sweeper",
    name="lanes_optuna",
    node={"_target_": "hydra_plugins.grok_lanes_optuna.sweeper.LanesOptunaSweeper"},
    provider="grok_lanes_optuna",
)


class LanesOptunaSweeper(Sweeper):
    """A study of settings; each trial is one lane sweep over the study's seeds."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take what Hydra made ready."""
        from hydra.core.plugins import Plugins

        self.config = config
        self.hydra_context = hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            config=config, hydra_context=hydra_context, task_function=task_function
        )

    def sweep(self, arguments: list[str]) -> None:
        """Carry the study out, or go on where it stopped."""
        from sweeps.search.carry_out import carry_out
        from sweeps.search.config import NO_STUDY, split_study

        launcher = self.launcher
        if not (isinstance(launcher, GrokLanesLauncher) and launcher.takes_plans()):
            raise HydraException("hydra/sweeper=lanes_optuna searches the settings of grok.run: expected its launcher")
        assert self.hydra_context is not None
        assert self.config is not None
        refuse_what_jobs_have(self.config)
        loader = cast(Any, self.hydra_context.config_loader)
        if self.config.get("study") is None and not any(word.startswith(("study=", "+study=")) for word in arguments):
            raise HydraException(NO_STUDY)
        fixed, swept = split(arguments, OverridesParser.create(config_loader=loader))
        settings = Composer(loader, self.config).compose(fixed, 0)
        study, space, base = split_study(settings)
        words = ["python", "-m", "grok.run", "-m", "hydra/sweeper=lanes_optuna", *arguments]
        train = _train(cast(PlanTask, launcher.task_function))
        carry_out(study, {**space, **swept}, base, words, train)  # the door's exit status is that of its last sweep


def split(arguments: Sequence[str], parser: OverridesParser) -> tuple[list[str], dict[str, Any]]:
    """Return the overrides that hold for all trials, and the space of those that are swept.

    Raises:
        HydraException: a sweep that is no space (``glob`` ...), or one with a tag that has no meaning for it.
    """
    fixed: list[str] = []
    swept: dict[str, Any] = {}
    for override in parser.parse_overrides(list(arguments)):
        key = override.get_key_element()
        if override.is_sweep_override():
            swept[key] = _dimension(override)
        else:
            fixed.append(str(override.input_line))
    return fixed, swept


def _dimension(override: Override) -> Mapping[str, Any]:
    value = override.value()
    known: set[str] = {"log"} if isinstance(value, IntervalSweep) else set()
    unknown: set[str] = getattr(value, "tags", known) - known
    if unknown:
        raise HydraException(
            f"{override.input_line}: tag {', '.join(sorted(unknown))} has no meaning here, "
            "expected tag(log,interval(LOW,HIGH)) or no tag"
        )
    if isinstance(value, IntervalSweep):
        return {"low": value.start, "high": value.end, "log": "log" in value.tags}
    if isinstance(value, RangeSweep) and value.start is not None and value.stop is not None:
        return {"low": value.start, "high": number_of(value, count(override) - 1), "step": value.step}
    if isinstance(value, ChoiceSweep):
        return {"choices": list(override.sweep_iterator())}
    raise HydraException(f"{override.input_line}: expected choice(...), range(...) or interval(...) to search over")


def _train(task: PlanTask) -> Train:
    """Return how the search trains: through Hydra's task function, which takes whole plans."""

    def train(settings: Sequence[dict[str, Any]], design: Purposes) -> bool:
        from grok.config import load_config
        from grok.execute.planned import prepare_runs
        from grok.store import open_store

        task.run_plan(settings, design)
        configs = [load_config(one) for one in settings]
        stored = open_store(configs[0].store.path).statuses()
        return all(run.run_id in stored for run in prepare_runs(configs))

    return train
