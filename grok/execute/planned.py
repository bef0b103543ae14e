"""A run to train: its settings and its names. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grok.config import GptConfig, Identity, RunConfig, identify
from grok.errors import DataError
from grok.text.corpus import read_manifest


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


def name_runs(configs: Sequence[RunConfig]) -> list[PlannedRun]:
    """Return every config with its names.

    Raises:
        DataError: the data of a GPT run is missing.
    """
    hashes: dict[str | None, str | None] = {}
    named = []
    for config in configs:
        path = config.data.path if isinstance(config, GptConfig) else None
        if path not in hashes:
            hashes[path] = data_hash(config)
        named.append(PlannedRun(config, identify(config, hashes[path]), hashes[path]))
    return named


def data_hash(config: RunConfig) -> str | None:
    """Return the hash of the data that a GPT run reads, None in arithmetic mode.

    Raises:
        DataError: no folder is given, or it was not made by ``grok.prepare``.
    """
    if not isinstance(config, GptConfig):
        return None
    if config.data.path is None:
        raise DataError("data.path is not given: expected a folder made by `python -m grok.prepare`")
    return str(read_manifest(Path(config.data.path))["hash"])
