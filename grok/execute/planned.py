"""A run to train: its settings and its names."""

from __future__ import annotations

from dataclasses import dataclass

from grok.config import Identity, RunConfig


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run to train."""

    config: RunConfig
    identity: Identity
    data_hash: str | None = None
    extends: str | None = None
    """A stored, shorter run of the same trajectory whose kept checkpoint this one goes on from."""

    @property
    def run_id(self) -> str:
        return self.identity.run_id
