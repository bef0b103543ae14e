"""Imports plugins in this process, from the source texts in ``Code``, and only those that the command names."""

from __future__ import annotations

import dis
import importlib
import linecache
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from grok.errors import ConfigError, nearest
from grok.plugins.code import Code, Source, code_of
from grok.plugins.installed import OURS
from grok.plugins.spec import Spec, arguments_of, label, target_of


class _Loader(InspectLoader):
    """Makes a module from a source text; tracebacks and ``inspect`` show that text."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def get_source(self, fullname: str) -> str:
        return self.source.text

    def is_package(self, fullname: str) -> bool:
        return self.source.package

    def get_code(self, fullname: str) -> CodeType | None:
        path, text = self.source.path, self.source.text
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        return self.source_to_code(text, path)

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self.source.path
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds the modules of the active code before ``sys.path`` is searched."""

    code = Code()

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        source = self.code.modules.get(fullname)
        if source is None:
            return None
        spec = ModuleSpec(fullname, _Loader(source), origin=source.path, is_package=source.package)
        if source.package:
            spec.submodule_search_locations = [str(Path(source.path).parent)]
        return spec


_FINDER = _Finder()


def activate(code: Code) -> None:
    """Import plugins from ``code`` from now on; modules of other code are removed from ``sys.modules``."""
    if code == _FINDER.code:
        return
    if code.modules != _FINDER.code.modules:
        for name in [*_FINDER.code.modules, *code.modules]:
            sys.modules.pop(name, None)
    _FINDER.code = code
    if code.modules and _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def active() -> Code:
    """Return the code from which this process imports plugins."""
    return _FINDER.code


def is_own(namespace: Mapping[str, object]) -> bool:
    """Return whether a module is the user's own, or of an installed package whose code the command names."""
    module = str(namespace.get("__name__"))
    packages = {place.module.split(".")[0] for place in _FINDER.code.targets.values()} - {*OURS, "torch"}
    return module in _FINDER.code.modules or module.split(".", maxsplit=1)[0] in packages


def place_in_own_code(error: BaseException) -> str:
    """Return ``" at FILE:LINE"``, the innermost line of the user's own code that an error came through, or ``""``."""
    walked = traceback.walk_tb(error.__traceback__)
    own = [(frame.f_code, line) for frame, line in walked if is_own(frame.f_globals)]
    return f" at {Path(own[-1][0].co_filename).name}:{own[-1][1]}" if own else ""


def ends_process(error: BaseException) -> bool:
    """Return whether the user's own code raised what ends a process: ``sys.exit(0)`` must not pass for success.

    A request to end (Ctrl-C) that arrives while own code is at work is not that code's: Python raises it between
    two instructions, no ``raise`` does.
    """
    walked = list(traceback.walk_tb(error.__traceback__))
    if isinstance(error, SystemExit):
        return any(is_own(frame.f_globals) for frame, _ in walked)
    if not isinstance(error, KeyboardInterrupt | GeneratorExit) or not walked or not is_own(walked[-1][0].f_globals):
        return False
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    assert last is not None
    return last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


@contextmanager
def exits_refused() -> Iterator[None]:
    """Raise an error where the user's own code would end this process in silence.

    Raises:
        ConfigError: instead of SystemExit, KeyboardInterrupt or GeneratorExit of that code.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as end:
        if not ends_process(end):
            raise
        raise ConfigError(
            f"your own code would end the process{place_in_own_code(end)} ({type(end).__name__}: {end}): expected it "
            "to return, or to raise another exception"
        ) from end


def name_code(folder: str | Path, targets: Iterable[str]) -> None:
    """Let the code behind ``targets`` be imported, for a command without settings; ``folder`` is searched first.

    Raises:
        ConfigError: see :func:`code_of`.
    """
    activate(code_of(folder, targets, option="--plugin-path DIR"))


def load(spec: Spec | str) -> Any:
    """Return the object that ``spec``, or an import path, names, without calling it.

    Raises:
        ConfigError: the command does not name it, its module cannot be imported, or the module has no such name.
    """
    target = spec if isinstance(spec, str) else target_of(spec)
    place = _FINDER.code.targets.get(target)
    if place is None:
        raise ConfigError(f"{target} is code outside this package, and this command does not name it: not imported")
    try:
        value: Any = importlib.import_module(place.module)
    except Exception as error:
        raise ConfigError(f"{target}: importing {place.module} failed ({type(error).__name__}: {error})") from error
    for name in place.attribute.split("."):
        if not hasattr(value, name):
            known = [n for n, of in vars(value).items() if not n.startswith("_") and _defines(place.module, of)]
            has = f"has {', '.join(known) or 'nothing'}"
            meant = nearest(name, known)
            raise ConfigError(f"{target}: {place.module} has no {name!r}{f'{meant} It' if meant else ', it'} {has}")
        value = getattr(value, name)
    return value


def _defines(module: str, value: object) -> bool:
    """Return whether ``value`` is a function or class of ``module`` itself, not imported into it."""
    return callable(value) and getattr(value, "__module__", module) == module


def build(spec: Spec, *positional: Any, **further: Any) -> Any:
    """Call the object that ``spec`` names with the spec's arguments, and return the result.

    Args:
        spec: names the object and its keyword arguments.
        positional: positional arguments.
        further: keyword arguments; those of the spec override them.

    Raises:
        ConfigError: see :func:`load`; or the object refuses its arguments.
    """
    made = load(spec)
    try:
        return made(*positional, **{**further, **arguments_of(spec)})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{label(spec)} refuses its arguments{place_in_own_code(error)}: {error}") from error
