"""``python -m grok.run``: one run, or with ``-m`` a sweep, by Hydra's command line.

Hydra reads the settings and nothing else; ``grok.execute`` does the work. Exit status 0:
everything asked for is stored; 1: something failed or was interrupted, and the last line
says how to go on; 2: refused, in one line.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from grok.cli.command import GO_ON, command
from grok.cli.compose import run_application
from grok.cli.presets import announcement
from grok.cli.reference import run_help
from grok.cli.words import store_as_setting
from grok.config import GptConfig, load_config
from grok.errors import GrokError, TrainingError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from grok.execute import Outcome

OPTIONS: Final = ("--store", "--again", "--multirun", "--cfg", "--help", "--hydra-help")
"""What completion offers beside settings."""


class Door:
    """Hydra's task function: a single run is a call, a sweep one call of :meth:`run_plan`."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = argv
        self.outcome: Outcome | None = None
        self.refusal: GrokError | None = None

    def __call__(self, config: DictConfig) -> None:
        """Train the one run of a command without ``-m``."""
        from omegaconf import OmegaConf

        try:
            settings = OmegaConf.to_container(config, resolve=True)
            self._execute([typing.cast(dict[str, Any], settings)])
        except GrokError as refusal:  # Hydra would add lines of its own
            self.refusal = refusal

    def run_plan(self, settings: Sequence[Mapping[str, Any]]) -> Sequence[str | Exception]:
        """Train all jobs of a sweep; return each one's run_id, or what it failed with."""
        outcome = self._execute(settings)
        return [self._ended(run_id, outcome) for run_id in outcome.run_ids]

    def _execute(self, settings: Sequence[Mapping[str, Any]]) -> Outcome:
        from grok.execute import execute

        configs = [load_config(job) for job in settings]
        for line in announcement([c for c in configs if isinstance(c, GptConfig)], self.argv):
            print(line, flush=True)
        self.outcome = execute(configs, argv=self.argv)
        return self.outcome

    @staticmethod
    def _ended(run_id: str, outcome: Outcome) -> str | Exception:
        if outcome.statuses.get(run_id) == "failed":
            return TrainingError(f"run {run_id} failed: {outcome.errors.get(run_id, 'in an earlier command')}")
        return run_id


@command(interrupted=GO_ON)
def main(argv: list[str]) -> int:
    """Run a command line; the words are overrides and Hydra's options."""
    if not {"-h", "--help"}.isdisjoint(argv) and not any(word.startswith("--again") for word in argv):
        print(run_help(argv))
        return 0
    if any(word.partition("=")[0] == "--again" for word in argv):
        from grok.cli import again

        return again.main(argv)
    door = Door(["python", "-m", "grok.run", *argv])
    run_application(door, store_as_setting(argv))
    if door.refusal is not None:
        raise door.refusal
    return door.outcome.exit_status if door.outcome is not None else 0


if __name__ == "__main__":
    sys.exit(main())
