"""The config nodes that ``hydra/sweeper: grok_lanes`` and ``hydra/launcher: grok_lanes`` stand for.

Apart from the plugins: Hydra executes a plugin's module before it is importable, which
dataclasses do not survive.
"""

from __future__ import annotations

from dataclasses import dataclass

from hydra.core.config_store import ConfigStore


@dataclass
class SweeperNode:
    _target_: str = "hydra_plugins.grok_lanes.sweeper.GrokLanesSweeper"
    max_batch_size: int | None = None
    params: dict[str, str] | None = None


@dataclass
class LauncherNode:
    _target_: str = "hydra_plugins.grok_lanes.launcher.GrokLanesLauncher"


def register() -> None:
    """Make both names known to Hydra."""
    store = ConfigStore.instance()
    store.store(group="hydra/sweeper", name="grok_lanes", node=SweeperNode, provider="grok_lanes")
    store.store(group="hydra/launcher", name="grok_lanes", node=LauncherNode, provider="grok_lanes")
