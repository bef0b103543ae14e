"""Hydra and OmegaConf with the same results in half the time: commands in the process of the tests read the same files.

A quarter of the fast tests compose settings; reading, copying and merging twenty files takes most of their time.
"""

import copy
import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import omegaconf.base
import pytest
from hydra._internal.config_repository import ConfigRepository
from omegaconf import DictConfig, ListConfig, UnionNode

ROOT: Final = Path(__file__).parents[1]
SLOW_COPIES: Final = {kind: kind.__deepcopy__ for kind in (DictConfig, ListConfig)}


def _shallow(thing: Any) -> Any:
    new = object.__new__(type(thing))
    new.__dict__.update(thing.__dict__)
    return new


def copied(node: Any, parent: Any = None) -> Any:
    """Return what ``copy.deepcopy`` makes of a node of settings, ten times faster."""
    new = _shallow(node)
    state = new.__dict__
    metadata = state["_metadata"] = _shallow(state["_metadata"])
    if metadata.flags is not None:
        metadata.flags = dict(metadata.flags)
    metadata.resolver_cache = copy.deepcopy(metadata.resolver_cache) if metadata.resolver_cache else defaultdict(dict)
    state["_parent"] = parent
    if isinstance(node, DictConfig | ListConfig):
        state["_flags_cache"] = copy.copy(state["_flags_cache"])
        content = state["_content"]
        if isinstance(content, dict):
            state["_content"] = {key: copied(value, new) for key, value in content.items()}
        elif isinstance(content, list):
            state["_content"] = [copied(value, new) for value in content]
    elif isinstance(node, UnionNode):
        state["_content"] = copied(state["_content"], new)
    return new


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    return copied(self, self.__dict__["_parent"])  # as OmegaConf's own: the parent stays and is not copied


@contextmanager
def quick_settings() -> Iterator[None]:
    """Copy settings by :func:`copied`, and read each file of Hydra and of this project once.

    Files of a user's own folder are read each time.
    """
    read, kept = ConfigRepository.load_config, dict[Any, Any]()

    def load_config(repository: ConfigRepository, config_path: str) -> Any:
        sources = tuple((source.scheme(), source.path) for source in repository.sources)
        if any(scheme == "file" and not Path(path).is_relative_to(ROOT) for scheme, path in sources):
            return read(repository, config_path)
        if (sources, config_path) not in kept:
            kept[sources, config_path] = read(repository, config_path)
        result = kept[sources, config_path]
        return result and dataclasses.replace(
            result, config=copied(result.config), defaults_list=copy.deepcopy(result.defaults_list)
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigRepository, "load_config", load_config)
        # what a text such as ${store.path} is made of: a tree that is only read
        patch.setattr(omegaconf.base, "parse", functools.cache(omegaconf.base.parse))
        for kind in SLOW_COPIES:
            patch.setattr(kind, "__deepcopy__", _deepcopy)
        yield
