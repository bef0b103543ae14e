"""What Hydra's application calls with composed settings: the runs are trained by ``grok.execute``."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grok.cli.compose import run_application
from grok.cli.presets import announcement, refuse_two_lengths
from grok.cli.refusals import explain, no_launcher
from grok.config import GptConfig, RunConfig, load_configs
from grok.errors import ConfigError, GrokError, TrainingError
from grok.masking import without_passwords
from grok.processes import Rank

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from grok.execute import Outcome


class Task:
    """Hydra's task function: a single run is a call, a sweep one call of :meth:`run_plan`."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = argv
        self.configs: list[RunConfig] = []
        self.outcome: Outcome | None = None
        self.refusal: GrokError | None = None
        self.begun = False
        """Whether the settings are read: what goes wrong from here on is not the command line's fault."""

    def carry_out(self, words: Sequence[str]) -> Outcome | None:
        """Train what a command line asks for; None: it only asked for something to be printed.

        Raises:
            GrokError: refused; nothing was trained.
        """
        run_application(self, words)
        if self.refusal is not None:
            raise self.refusal
        return self.outcome

    def __call__(self, config: DictConfig) -> None:
        """Train the one run of a command without ``-m``."""
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        if HydraConfig.get().mode == RunMode.MULTIRUN:  # each run would replace the outcome of the one before
            self.refusal = ConfigError(no_launcher(HydraConfig.get().runtime.choices["hydra/launcher"]))
            return
        try:
            settings = OmegaConf.to_container(config, resolve=True)
            self._execute([typing.cast(dict[str, Any], settings)])
        except OmegaConfBaseException as error:
            self.refusal = ConfigError(explain(error, one_run=True))
        except GrokError as refusal:  # Hydra would add lines of its own
            self.refusal = refusal

    def run_plan(self, settings: Sequence[Mapping[str, Any]]) -> Sequence[str | Exception]:
        """Train all jobs of a sweep; return each one's run_id, or what it failed with."""
        outcome = self._execute(settings)
        return [self._ended(run_id, outcome) for run_id in outcome.run_ids]

    def _execute(self, settings: Sequence[Mapping[str, Any]]) -> Outcome:
        from grok.execute import Designed, execute

        self.begun = True
        self.configs = load_configs(settings)
        language_models = [config for config in self.configs if isinstance(config, GptConfig)]
        for config in language_models:
            refuse_two_lengths(config, self.argv)
        if Rank.of_this_process().index == 0:
            for line in announcement(language_models, self.argv):
                print(without_passwords(line), flush=True)
        self.outcome = execute(Designed(self.configs, "given"), argv=self.argv)
        return self.outcome

    @staticmethod
    def _ended(run_id: str, outcome: Outcome) -> str | Exception:
        if outcome.statuses.get(run_id) == "failed":
            return TrainingError(f"run {run_id} failed: {outcome.errors.get(run_id, 'in an earlier command')}")
        return run_id
