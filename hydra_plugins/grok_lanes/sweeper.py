"""Expands a sweep's overrides into jobs; composing and running them is the launcher's."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep, Sweep, ValueType
from hydra.errors import HydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from grok.commands.compose import no_launcher
from grok.config.common import refuse_too_many_runs
from hydra_plugins.grok_lanes._compose import ParsedOverride
from hydra_plugins.grok_lanes._nodes import register
from hydra_plugins.grok_lanes.launcher import GrokLanesLauncher, PlanTask

register()


class GrokLanesSweeper(BasicSweeper):
    """Hydra's BasicSweeper, but for a launcher that takes whole plans it neither composes each job
    beforehand nor makes folders."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take what Hydra made ready.

        Raises:
            HydraException: another launcher would call a task that takes plans once per run.
        """
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        takes_plans = isinstance(cast(Any, task_function), PlanTask)
        if takes_plans and not isinstance(self.launcher, GrokLanesLauncher):
            raise HydraException(no_launcher(config.hydra.runtime.choices["hydra/launcher"]))

    def sweep(self, arguments: list[str]) -> Any:
        """Return the JobReturns in the order of the product of the sweep overrides: a plan is one batch."""
        if not (isinstance(self.launcher, GrokLanesLauncher) and self.launcher.takes_plans()):
            return super().sweep(arguments)
        assert self.hydra_context is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        jobs: list[Any] = expand(parser.parse_overrides([*self._parse_config(), *arguments]), parser)
        self._save_sweep_config()
        return [self.launcher.launch(jobs, initial_job_idx=0)]

    def _save_sweep_config(self) -> None:
        """Write Hydra's ``multirun.yaml`` where the user asked for a sweep folder, and only there."""
        assert self.config is not None
        if any(str(o).startswith("hydra.sweep.dir=") for o in self.config.hydra.overrides.hydra):
            folder = Path(str(self.config.hydra.sweep.dir))
            folder.mkdir(parents=True, exist_ok=True)
            OmegaConf.save(self.config, folder / "multirun.yaml")


def expand(overrides: Sequence[Override], parser: OverridesParser) -> list[list[ParsedOverride]]:
    """Return every job's overrides: the product over all swept ones, the last varying fastest.

    Raises:
        HydraException: a sweep without values, or over a continuous interval.
        ConfigError: more runs than one command may have; none is made before that is known.
    """
    counts = {override.get_key_element(): count(override) for override in overrides}
    swept = ", ".join(str(override.input_line) for override in overrides if override.is_sweep_override())
    refuse_too_many_runs(math.prod(counts.values()), swept)
    axes: dict[str, list[ParsedOverride]] = {}
    for override in overrides:
        key = override.get_key_element()  # given twice, the last one counts, as in Hydra's own sweeper
        axes[key] = list(_values(key, override, parser))
        if not axes[key]:
            raise HydraException(f"{override.input_line} is empty: expected at least one value to sweep over")
    return [list(job) for job in itertools.product(*axes.values())]


def count(override: Override) -> int:
    """Return how many values an override has, without making them.

    Raises:
        HydraException: a range without end, or one among other values.
    """
    value = override.value()
    if isinstance(value, RangeSweep):
        try:
            start, stop, step = (_exact(number or 0) for number in (value.start, value.stop, value.step))
        except ValueError as error:
            raise HydraException(f"{override.input_line}: expected finite numbers") from error
        return max(0, math.ceil((stop - start) / step)) if step else 0
    if not isinstance(value, ChoiceSweep):
        return 1
    if any(isinstance(one, Sweep) for one in value.list):
        raise HydraException(f"{override.input_line}: a range among other values, expected one range, or all values")
    return len(value.list)


def number_of(sweep: RangeSweep, index: int) -> float:
    """Return a number of a range: START + index * STEP, computed with the decimals that were typed.

    Hydra adds in binary, where 0.8 is more than 0.3 + 5 * 0.1: range(0.3,0.8,0.1) would reach its end.
    """
    exact = _exact(sweep.start or 0) + index * _exact(sweep.step)
    whole = all(isinstance(number, int) for number in (sweep.start, sweep.stop, sweep.step))
    return int(exact) if whole else float(exact)


def _exact(number: float) -> Fraction:
    return Fraction(repr(number))


def _values(key: str, override: Override, parser: OverridesParser) -> Iterator[ParsedOverride]:
    if not override.is_sweep_override():
        text = f"{key}={override.get_value_element_as_str()}"
        yield ParsedOverride.of(text, parser.parse_override(text))
        return
    if not override.is_discrete_sweep():
        raise HydraException(
            f"{override.input_line}: an interval cannot be swept over, expected values, range() or choice()"
        )
    sweep = override.value()
    if isinstance(sweep, RangeSweep):
        values: list[Any] = [number_of(sweep, index) for index in range(count(override))]
        if sweep.shuffle:
            random.shuffle(values)
    else:
        values = list(override.sweep_iterator())
    for value in values:
        text = f"{key}={Override._get_value_element_as_str(value)}"
        if isinstance(value, (int, float)):  # a number's text is that number: no need to parse thousands of them
            yield ParsedOverride.of(
                text, replace(override, value_type=ValueType.ELEMENT, _value=value, input_line=text)
            )
        else:
            yield ParsedOverride.of(text, parser.parse_override(text))
