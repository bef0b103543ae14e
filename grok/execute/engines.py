"""The engine of each mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grok.config import GptConfig
from grok.records import Event, Job, StopRequested


def train(jobs: Sequence[Job], *, lanes: int | None, device: str, stop: StopRequested) -> Iterator[Event]:
    """Return the events of the engine that trains ``jobs``, all of one mode; only now is torch imported."""
    if isinstance(jobs[0].config, GptConfig):
        from grok.gpt.training import engine as gpt

        return gpt.train(jobs, lanes=lanes, device=device, stop=stop)
    from grok.arithmetic import engine as arithmetic

    return arithmetic.train(jobs, lanes=lanes, device=device, stop=stop)
