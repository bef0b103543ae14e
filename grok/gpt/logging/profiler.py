"""One setting, ``log.profile=FOLDER``, writes a trace and a table of a few updates."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from grok.config.gpt import LogConfig
from grok.errors import ConfigError, one_line

WARM: Final = 3
"""Updates before the first profiled one: compilation and first allocations are not the run's speed."""
TABLE_ROWS: Final = 40


class Profiler:
    """Profiles updates ``WARM + 1 .. WARM + profile_steps`` counted from where the run starts."""

    def __init__(self, config: LogConfig, device: torch.device, from_step: int) -> None:
        """Make the folder.

        Raises:
            ConfigError: it cannot be made.
        """
        self.folder = Path(config.profile) if config.profile else None
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(
                    f"log.profile={config.profile} cannot be written ({error.strerror or error}): give another place, "
                    "or null"
                ) from error
        self.first, self.last = from_step + WARM + 1, from_step + WARM + config.profile_steps
        self.cuda = device.type == "cuda"
        self.running: profile | None = None

    def around(self, k: int) -> contextlib.AbstractContextManager[Any]:
        """Return the context of update ``k``: the profiler's, or one that does nothing."""
        if self.folder is None or not self.first <= k <= self.last:
            return contextlib.nullcontext()
        return self._update(k)

    @contextlib.contextmanager
    def _update(self, k: int) -> Any:
        if self.running is None:
            activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.cuda else [])
            self.running = profile(activities=activities)
            self.running.start()
        with record_function(f"update {k}"):
            yield
        if k == self.last:
            self.close()

    def close(self) -> None:
        """Write ``trace.json`` (for chrome://tracing or Perfetto) and ``table.txt``; a failure is only printed."""
        if self.running is None or self.folder is None:
            return
        running, self.running = self.running, None
        running.stop()
        try:
            running.export_chrome_trace(str(self.folder / "trace.json"))
            by = "self_cuda_time_total" if self.cuda else "self_cpu_time_total"
            table = running.key_averages().table(sort_by=by, row_limit=TABLE_ROWS)
            (self.folder / "table.txt").write_text(table, encoding="utf-8")
        except (OSError, RuntimeError) as error:  # torch has errors of its own
            reason = one_line(error)
            print(
                f"warning: log.profile={self.folder} cannot be written ({reason}); the run goes on without it",
                file=sys.stderr,
                flush=True,
            )
