"""What every test gets: one computing thread, and global random generators that refuse to be used."""

import copy
import functools
import gc
import importlib.util
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SAMPLES = os.environ.get("GROK_SAMPLES")

# A deadline of 200 ms an example fails on a busy machine and says nothing about the code.
if importlib.util.find_spec("hypothesis"):  # a machine with a GPU may have no more than torch and pytest
    from hypothesis import settings

    settings.register_profile("grok", deadline=None, derandomize=True)  # a red test is red again
    settings.register_profile("explore", deadline=None)  # pytest --hypothesis-profile=explore
    settings.load_profile("grok")

# A suite in the background ignores Ctrl-C, one under nohup a hang-up, and so would every command that it starts.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(number, usual)


def pytest_addoption(parser: pytest.Parser) -> None:
    if not importlib.util.find_spec("pytest_timeout"):
        parser.addini("timeout", "seconds for a test, of a plugin that is not installed here")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under ``-m cuda`` leave out what has no such test: it imports what a machine with a GPU may not have."""
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    if config.option.markexpr != "cuda" or not (collection_path.is_dir() or collection_path.name.startswith("test_")):
        return None
    return None if any("pytest.mark.cuda" in file.read_text() for file in files) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch  # not above: the process that only gives out tests would import it too

    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        reason = f"needs a CUDA device, torch {torch.__version__} sees none: run `pytest -m cuda` where there is one"
        for item in items:
            if item.get_closest_marker("cuda"):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Leave what was imported out of every later garbage collection: statsmodels, for one, asks for a whole one."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)  # tests make few cycles and have memory enough


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Flush nothing in the process of the tests: those about power cuts only record it, and others use the disk too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: os.fstat(handle) and None)  # a closed file is refused
        yield


@pytest.fixture(scope="session", autouse=True)
def settings_are_composed_once() -> Iterator[None]:
    """Let Hydra read each file and compose each command line once in a process, but for folders of one's own.

    It composes a command's settings once more to see whether they set `hydra.mode`, which no file here does.
    """
    if not importlib.util.find_spec("hydra"):
        yield
        return
    import omegaconf.base
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import ConfigRepository, IConfigRepository
    from hydra._internal.hydra import Hydra
    from hydra.core.utils import JobRuntime

    read, kept, root = ConfigRepository.load_config, dict[Any, Any](), Path(__file__).parents[1]
    compose, composed, mode = ConfigLoaderImpl.load_configuration, dict[Any, Any](), Hydra.get_mode

    def shared(repository: IConfigRepository, words: Sequence[str]) -> tuple[Any, ...] | None:
        """Return what names the files that ``words`` choose from, or None where others may stand there next time."""
        sources = tuple((source.scheme(), source.path) for source in repository.get_sources())
        own = any(scheme == "file" and not Path(path).is_relative_to(root) for scheme, path in sources)
        return None if own or any("hydra" in word.partition("=")[0] for word in words) else sources

    def load_config(repository: ConfigRepository, config_path: str) -> Any:
        sources = shared(repository, ())
        if sources is None:
            return read(repository, config_path)
        if (sources, config_path) not in kept:
            kept[sources, config_path] = read(repository, config_path)
        return copy.deepcopy(kept[sources, config_path])

    def load_configuration(loader: ConfigLoaderImpl, *, overrides: list[str], **how: Any) -> Any:
        words = [word for word in overrides if not word.startswith("hydra.mode=")]
        sources = shared(loader.repository, words)
        if sources is None:
            return compose(loader, overrides=overrides, **how)
        key = (sources, JobRuntime.instance().get("name"), *overrides, *how.items())
        if key not in composed:
            if len(composed) > 100:  # a command is given again soon or never
                composed.clear()
            composed[key] = compose(loader, overrides=overrides, **how)
        config = copy.deepcopy(composed[key])
        config.hydra.runtime.cwd = str(Path.cwd())
        return config

    def get_mode(hydra: Hydra, config_name: str | None, overrides: list[str]) -> Any:
        found = shared(hydra.config_loader.repository, overrides)
        return mode(hydra, config_name, overrides) if found is None else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigRepository, "load_config", load_config)
        patch.setattr(ConfigLoaderImpl, "load_configuration", load_configuration)
        patch.setattr(Hydra, "get_mode", get_mode)
        # what a text such as ${store.path} is made of: a tree that is only read
        patch.setattr(omegaconf.base, "parse", functools.cache(omegaconf.base.parse))
        yield


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Begin with one thread: sums of float64 depend on their number, and commands in this process may change it."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def no_global_randomness(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make every global generator raise, and check afterwards that torch's was not moved."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a global random generator was used")

    for name in ("seed", "rand", "randn", "randint", "random", "permutation", "shuffle", "choice", "normal", "uniform"):
        monkeypatch.setattr(np.random, name, refuse)
    for name in ("seed", "random", "randint", "shuffle", "choice", "sample", "gauss", "uniform", "randrange"):
        monkeypatch.setattr(random, name, refuse)
    import torch

    monkeypatch.setattr(torch, "manual_seed", refuse)
    monkeypatch.setattr(torch, "seed", refuse)
    before = torch.random.get_rng_state().clone()
    yield
    assert torch.equal(before, torch.random.get_rng_state()), "torch's global generator was moved"


@pytest.fixture(scope="session")
def samples() -> Callable[[str], Path]:
    """Return a published sample by its path below $GROK_SAMPLES, or skip the test."""

    def find(name: str) -> Path:
        if not SAMPLES:
            pytest.skip(f"GROK_SAMPLES does not name the folder of the published sample {name}")
        path = Path(SAMPLES) / name
        if not path.exists():
            pytest.skip(f"GROK_SAMPLES={SAMPLES} has no {name}")
        return path

    return find


@pytest.fixture
def no_png(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the PNG of each figure: drawing takes most of a report's time, and the page holds the SVG."""
    from grok.analysis.figures.style import Drawing

    monkeypatch.setattr(Drawing, "png", lambda drawing: b"")
