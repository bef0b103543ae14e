"""Expands a sweep's overrides into jobs; composing and running them is the launcher's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, OverrideType, RangeSweep, ValueType
from hydra.errors import HydraException
from omegaconf import OmegaConf

from grok.config.common import refuse_too_many_runs
from hydra_plugins.grok_lanes._compose import ParsedOverride
from hydra_plugins.grok_lanes._nodes import register
from hydra_plugins.grok_lanes.launcher import GrokLanesLauncher

register()


class GrokLanesSweeper(BasicSweeper):
    """Hydra's BasicSweeper, but for a launcher that takes whole plans it neither composes each job
    beforehand nor makes folders."""

    def sweep(self, arguments: list[str]) -> Any:
        """Return one list of JobReturn per batch, in the order of the product of the sweep overrides."""
        if not (isinstance(self.launcher, GrokLanesLauncher) and self.launcher.takes_plans()):
            return super().sweep(arguments)
        assert self.hydra_context is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        jobs: list[Any] = expand(parser.parse_overrides([*self._parse_config(), *arguments]), parser)
        self._save_sweep_config()
        returns, first = [], 0
        for batch in self.split_overrides_to_chunks(jobs, self.max_batch_size):
            returns.append(self.launcher.launch(batch, initial_job_idx=first))
            first += len(batch)
        return returns

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
    refuse_too_many_runs(math.prod(counts.values()), ", ".join(_swept(overrides)))
    axes: dict[str, list[ParsedOverride]] = {}
    for override in overrides:
        key = override.get_key_element()  # given twice, the last one counts, as in Hydra's own sweeper
        axes[key] = list(_values(key, override, parser))
        if not axes[key]:
            raise HydraException(f"{override.input_line} is empty: expected at least one value to sweep over")
    return [list(job) for job in itertools.product(*axes.values())]


def _swept(overrides: Sequence[Override]) -> Iterator[str]:
    for override in overrides:
        if override.is_sweep_override():
            yield str(override.input_line)


def count(override: Override) -> int:
    """Return how many values an override has, without making them."""
    value = override.value()
    if isinstance(value, RangeSweep):
        try:
            start, stop, step = (Fraction(number) for number in (value.start or 0, value.stop or 0, value.step))
        except (ValueError, OverflowError) as error:
            raise HydraException(f"{override.input_line}: expected finite numbers") from error
        return max(0, math.ceil((stop - start) / step)) if step else 0
    return len(value.list) if isinstance(value, ChoiceSweep) else 1


def _values(key: str, override: Override, parser: OverridesParser) -> Iterator[ParsedOverride]:
    if not override.is_sweep_override():
        text = f"{key}={override.get_value_element_as_str()}"
        yield ParsedOverride.of(text, parser.parse_override(text))
        return
    if not override.is_discrete_sweep():
        raise HydraException(
            f"{override.input_line}: an interval cannot be swept over, expected values, range() or choice()"
        )
    try:
        values = list(override.sweep_iterator())
    except ValueError as error:  # range(0,5,0)
        raise HydraException(f"{override.input_line}: {error}") from error
    for value in values:
        text = f"{key}={Override._get_value_element_as_str(value)}"
        if isinstance(value, (int, float)):  # a number's text is that number: no need to parse thousands of them
            yield ParsedOverride.of(text, _element(override, value, text))
        else:
            yield ParsedOverride.of(text, parser.parse_override(text))


def _element(sweep: Override, value: Any, text: str) -> Override:
    """Return what parsing ``text``, one value of ``sweep``, would give."""
    kind: OverrideType = sweep.type
    return Override(
        type=kind,
        key_or_group=sweep.key_or_group,
        value_type=ValueType.ELEMENT,
        _value=value,
        package=sweep.package,
        input_line=text,
    )
