"""Plugins, the user's own code by import path: tasks, models, optimisers, losses, interventions, metrics.

A setting ``{_target_: MODULE.NAME, ARGUMENT: VALUE, ...}`` names a plugin. Its source is read when a command is
planned, its hash is part of the runs' names, and the source is sent to the workers with their work. Only code that
the user's command names is imported, never code that a store or a checkpoint names.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from grok.errors import ConfigError, in_words, nearest
from grok.version import __version__

# The contracts of plugins: their results and their arguments. n examples, T tokens of an example, V classes.

Tensor = Any
"""A ``torch.Tensor``; typed as Any, because planning imports this module without torch."""
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Operation:
    """A task of two operands: ``table[a, b]`` is the answer to ``a op b``; all three are numbers 0 to n - 1.

    The lanes of the built-in operations train it, on every device.

    Raises:
        ConfigError: the table is not square, not of integers, or has an answer outside 0 to n - 1.
    """

    table: Integers
    """[n, n]"""

    def __post_init__(self) -> None:
        table = np.asarray(self.table)
        if table.ndim != 2 or table.shape[0] != table.shape[1] or not np.issubdtype(table.dtype, np.integer):
            raise ConfigError(f"an operation's table is {table.dtype} {table.shape}: expected whole numbers [n, n]")
        if table.min() < 0 or table.max() >= len(table):
            raise ConfigError(
                f"an operation's table of {len(table)} elements has answers from {table.min()} to {table.max()}: "
                f"expected 0 to {len(table) - 1}"
            )
        object.__setattr__(self, "table", table.astype(np.int64))


@dataclass(frozen=True, slots=True)
class Seeds:
    """The seeds of a run that a training function of the user's own draws from, each 0 to 2^63 - 1."""

    split: int
    init: int
    order: int


@dataclass(frozen=True, slots=True)
class Training:
    """A function that trains a run as a whole: its first parameters are named ``config`` and ``streams``.

    It is called with the run's settings, its :class:`Seeds` and the spec's arguments. It returns a map of numbers, or
    yields one for each evaluation, with its ``step``. ``train_loss``, ``train_acc``, ``val_loss``, ``val_acc``,
    ``weight_norm`` and ``lr`` are columns of the curves, other names are in ``metrics``; ``weights``, a map of arrays,
    are those of the run.
    """

    function: Callable[..., Any]

    @staticmethod
    def is_one(value: object) -> bool:
        """Return whether ``value`` is such a function."""
        return inspect.isfunction(value) and list(inspect.signature(value).parameters)[:2] == ["config", "streams"]


@dataclass(frozen=True, slots=True)
class Examples:
    """A task of any form: inputs and the class of each. It is trained one lane at a time, uncompiled.

    Raises:
        ConfigError: the shapes or types do not fit.
    """

    inputs: NDArray[Any]
    """[n, T] token numbers, or [n, ...] floats."""
    answers: Integers
    """[n], each 0 to ``classes`` - 1."""
    vocab_size: int = 0
    """Number of tokens; 0: one more than the largest. Unused for floats."""
    classes: int = 0
    """Number of classes; 0: one more than the largest answer."""

    def __post_init__(self) -> None:
        inputs, answers = np.asarray(self.inputs), np.asarray(self.answers)
        tokens, classes = (np.issubdtype(array.dtype, np.integer) for array in (inputs, answers))
        fits = classes and answers.ndim == 1 and inputs.ndim > 1 and len(inputs) == len(answers) > 1
        if not fits or answers.min() < 0 or (tokens and inputs.min() < 0):
            raise ConfigError(
                f"examples have {inputs.dtype} inputs {inputs.shape} and {answers.dtype} answers {answers.shape}: "
                "expected floats, or tokens from 0, [n, T], and classes from 0 [n], n from 2"
            )
        largest = int(inputs.max()) + 1 if tokens else 0
        object.__setattr__(self, "inputs", inputs.astype(np.int64 if tokens else np.float32))
        object.__setattr__(self, "answers", answers.astype(np.int64))
        for name, least in (("vocab_size", largest), ("classes", int(answers.max()) + 1)):
            if 0 < getattr(self, name) < least:
                raise ConfigError(f"examples have {name}={getattr(self, name)}: expected at least {least}")
            object.__setattr__(self, name, max(getattr(self, name), least))

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def answer(self) -> Integers:
        """``answers``, under the name that it has in an operation's equations: for metrics that serve both."""
        return self.answers

    def take(self, index: Integers) -> Examples:
        """Return the examples at ``index``."""
        return Examples(self.inputs[index], self.answers[index], self.vocab_size, self.classes)


@dataclass(frozen=True, slots=True)
class Moment:
    """The argument of a metric at an evaluation. Its tensors and arrays are copies: a metric may change them."""

    step: int
    parameters: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    """Gradients of the step's mini-batch, before any intervention."""
    train_set: Any
    val_set: Any
    """Both are :class:`Examples`, or the equations of a task of two operands (``a``, ``b``, ``answers``).

    Their fields are numpy arrays on the CPU.
    """
    logits: Callable[[Any], Tensor]
    """Returns the logits [n, V] of a set."""
    classes: Callable[[Any], Tensor]
    """Returns the right classes [n] of a set, as indices of the logits."""


class RunSink(Protocol):
    """A log of one run beside the store. Its class is called with the run's ``run_id`` and its settings by name.

    An exception in a method is reported once; then no further run is logged.
    """

    def write(self, values: dict[str, float], step: int) -> None:
        """Log the numbers of an evaluation by name; of a language model also those of a step."""

    def finish(self, result: Any) -> None:
        """Log the end of the run: ``result.status``, ``result.stop_reason`` and ``result.steps``."""

    def close(self) -> None:
        """Close the log after the run's end."""


# The spec of a plugin in the settings, in Hydra's form: ``{_target_: MODULE.NAME, ARGUMENT: VALUE, ...}``.

TARGET: Final = "_target_"
_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

Spec = Mapping[str, Any]
"""A plugin in the settings; empty: none."""


def check_spec(setting: str, spec: Spec) -> None:
    """Refuse a spec without an import path, or with an argument that is no keyword.

    Raises:
        ConfigError: the message has the setting and what is expected.

    >>> check_spec("task.plugin", {"_target_": "parity.SparseParity", "bits": 40})
    """
    if not spec:
        return
    target = spec.get(TARGET)
    if not isinstance(target, str) or not _NAME.fullmatch(target):
        shown = f"{setting}={dict(spec)!r} names no code" if target is None else f"{setting}._target_={target!r}"
        raise ConfigError(f"{shown}: expected {setting}._target_=MODULE.NAME, for example my_module.MyTask")
    for name in spec:
        if name != TARGET and not (isinstance(name, str) and name.isidentifier()):
            raise ConfigError(f"{setting}.{name}: an argument of {target} needs a name of letters, digits and _")


def target_of(spec: Spec) -> str:
    """Return the import path."""
    return str(spec[TARGET])


def arguments_of(spec: Spec) -> dict[str, Any]:
    """Return the keyword arguments."""
    return {name: value for name, value in spec.items() if name != TARGET}


def label(spec: Spec) -> str:
    """Return a plugin's text for tables and messages: its import path and its arguments.

    >>> label({"_target_": "parity.SparseParity", "k": 3, "bits": 40})
    'parity.SparseParity(bits=40, k=3)'
    >>> label({"_target_": "groups.dihedral"})
    'groups.dihedral'
    """
    shown = ", ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value, sort_keys=True)}"
        for name, value in sorted(arguments_of(spec).items())
    )
    return f"{target_of(spec)}({shown})" if shown else target_of(spec)


# The fingerprint of installed code: its distribution's version, and the hash of the module's file.

OURS: Final = ("grok", "hydra_plugins")
DIGITS: Final = 16


def fingerprint_of_installed(module: str) -> str:
    """Return ``NAME VERSION:`` and the hash of the file of an installed module."""
    spec = importlib.util.find_spec(module)
    file = Path(spec.origin if spec is not None and spec.origin is not None else "")
    text = file.read_bytes() if file.is_file() else b""
    return f"{version_of(module)}{hashlib.sha256(text).hexdigest()[:DIGITS]}"


def version_of(module: str) -> str:
    """Return ``NAME VERSION:`` of the distribution that installed ``module``, or an empty text."""
    top = module.split(".", maxsplit=1)[0]
    if top in OURS:
        return f"grok-lab {__version__}:"
    names = _distributions().get(top)
    return f"{names[0]} {importlib.metadata.version(names[0])}:" if names else ""


_distributions = functools.cache(importlib.metadata.packages_distributions)
"""Returns the installed distributions by package; reading them takes a second."""


# Finds the modules behind import paths and hashes their text, without importing them.
#
# A module of the user's own folder (or of a package in editable installation) is read as text, with the modules of the
# same folder that it imports. Of an installed package the fingerprint has the version and the hash of the module's
# file.
# Imports other than by ``import`` statements, other installed packages that the code imports, and data files are not
# detected.


@dataclass(frozen=True, slots=True)
class Source:
    """One module as text."""

    path: str
    text: str
    package: bool


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a target's object, and the fingerprint of its code."""

    module: str
    attribute: str
    fingerprint: str
    """Hash of the code; of an installed package ``NAME VERSION:`` and the hash."""


@dataclass(frozen=True, slots=True)
class Code:
    """The code that one command names. Workers receive it by pickle."""

    targets: Mapping[str, Place] = field(default_factory=dict)
    modules: Mapping[str, Source] = field(default_factory=dict)
    """Text of every module of the user's own, by name."""


def fingerprints(code: Code, targets: Iterable[str]) -> dict[str, str]:
    """Return the fingerprint of each of ``targets``, by target."""
    return {target: code.targets[target].fingerprint for target in sorted(set(targets))}


def code_of(folder: str | Path, targets: Iterable[str], *, option: str = "plugin_path=DIR") -> Code:
    """Return the code behind ``targets``, searched in ``folder`` first, then among installed packages.

    ``option``: how the command names the folder, for its messages.

    Raises:
        ConfigError: no module has that name, or it cannot be read or is not Python.
    """
    places: dict[str, Place] = {}
    modules: dict[str, Source] = {}
    for target in dict.fromkeys(targets):
        module, attribute, root = _locate(Path(folder).resolve(), target, option)
        if root is None:
            places[target] = Place(module, attribute, fingerprint_of_installed(module))
        else:
            sources = _with_imports(root, module)
            modules |= sources
            version = "" if root == Path(folder).resolve() else version_of(module)
            places[target] = Place(module, attribute, version + _of_sources(sources))
    return Code(places, modules)


def _locate(folder: Path, target: str, option: str) -> tuple[str, str, Path | None]:
    """Return (module, attribute path, the folder of its sources or None for an installed one)."""
    parts = target.split(".")
    if len(parts) == 1:
        raise ConfigError(f"{target}: expected MODULE.NAME")
    cuts = [(".".join(parts[:count]), ".".join(parts[count:])) for count in range(len(parts) - 1, 0, -1)]
    for module, attribute in cuts if _may_be_own(parts[0]) else ():
        if _file(folder, module) is not None:
            return module, attribute, folder
    for module, attribute in cuts:
        with suppress(ImportError, AttributeError, ValueError):
            spec = importlib.util.find_spec(module)
            if spec is not None:
                return module, attribute, _source_root(module, spec.origin)
    raise ConfigError(
        f"{target}: there is no module {'.'.join(parts[:-1])!r} in {folder} and none is installed; "
        f"{option} names the folder that has it"
    )


def _may_be_own(package: str) -> bool:
    return package not in sys.stdlib_module_names and package not in OURS


def _source_root(module: str, origin: str | None) -> Path | None:
    """Return the folder of the sources of a module in editable installation, or None for an installed copy."""
    if origin is None or not origin.endswith(".py") or module.split(".", maxsplit=1)[0] in OURS:
        return None
    file = Path(origin).resolve()
    libraries = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}
    if "site-packages" in file.parts or any(file.is_relative_to(library) for library in libraries):
        return None
    depth = module.count(".") + (1 if file.name == "__init__.py" else 0)
    return file.parents[depth]


def _file(root: Path, module: str) -> Path | None:
    """Return the file of ``module`` below ``root``, or None (also for a package without ``__init__.py``)."""
    path = root.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


def _with_imports(root: Path, module: str) -> dict[str, Source]:
    """Return ``module``, its packages, and all modules below ``root`` that these import, directly or not."""
    sources: dict[str, Source] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in sources or not _may_be_own(name.split(".")[0]):
            continue
        file, folder, above = _file(root, name), root.joinpath(*name.split(".")), name.rpartition(".")[0]
        if file is not None:
            with in_words(ConfigError, f"{file} cannot be read as Python", OSError, UnicodeDecodeError):
                text = file.read_text(encoding="utf-8")
            sources[name] = Source(str(file), text, package=file.name == "__init__.py")
            waiting += _imported(file, text, name if sources[name].package else above)
        elif folder.is_dir() and (above or any(other.startswith(f"{name}.") for other in sources)):
            sources[name] = Source(str(folder / "__init__.py"), "", package=True)
        if above and name in sources:
            waiting.append(above)
    return sources


def _imported(file: Path, text: str, package: str) -> Iterator[str]:
    """Yield the absolute names of the modules that ``text``, a module in ``package``, may import."""
    with in_words(ConfigError, f"{file} is not Python", SyntaxError, ValueError):
        tree = ast.parse(text, str(file))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".") if package else []
            base = above[: len(above) - (node.level - 1)] if node.level else []
            inside = ".".join([*base, *(node.module.split(".") if node.module else [])])
            if inside:
                yield inside
            yield from (f"{inside}.{alias.name}" if inside else alias.name for alias in node.names)


def _of_sources(sources: Mapping[str, Source]) -> str:
    """Return the hash of the sources' names and texts; it does not depend on the folder's path."""
    digest = hashlib.sha256()
    for name in sorted(sources):
        text = sources[name].text.replace("\r\n", "\n")
        digest.update(f"{name}\0{len(text)}\0{text}\0".encode())
    return digest.hexdigest()[:DIGITS]


# Imports plugins in this process, from the source texts in ``Code``, and only those that the command names.


class _Loader(SourceLoader):
    """Makes a module from a source text; tracebacks and ``inspect`` show that text."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def get_filename(self, fullname: str) -> str:
        return self.source.path

    def get_data(self, path: str) -> bytes:
        text = self.source.text
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        return text.encode()


class _Finder(MetaPathFinder):
    """Finds the modules of the active code before ``sys.path`` is searched."""

    code = Code()

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        source = self.code.modules.get(fullname)
        if source is None:
            return None
        inside = [str(Path(source.path).parent)] if source.package else None
        return importlib.util.spec_from_file_location(
            fullname, source.path, loader=_Loader(source), submodule_search_locations=inside
        )


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


def own_lines(error: BaseException) -> list[tuple[CodeType, int]]:
    """Return the lines of the user's own code that an error came through, the innermost last."""
    walked = traceback.walk_tb(error.__traceback__)
    return [(frame.f_code, line) for frame, line in walked if is_own(frame.f_globals)]


def is_of(code: CodeType, spec: Spec) -> bool:
    """Return whether ``code`` is the function that ``spec`` names, or a method of its class."""
    return f"{code.co_qualname}.".startswith(f"{_FINDER.code.targets[target_of(spec)].attribute}.")


def own_place(error: BaseException) -> str:
    """Return ``" at FILE:LINE"``, the innermost line of the user's own code that an error came through, or ``""``."""
    own = own_lines(error)
    return f" at {Path(own[-1][0].co_filename).name}:{own[-1][1]}" if own else ""


def ends_process(error: BaseException) -> bool:
    """Return whether the user's own code asked to end the process: its ``sys.exit(0)`` must not pass for success."""
    return isinstance(error, SystemExit | GeneratorExit) and bool(own_lines(error))


@contextmanager
def exits_refused() -> Iterator[None]:
    """Raise an error where the user's own code would end this process in silence.

    Raises:
        ConfigError: instead of SystemExit of that code.
    """
    try:
        yield
    except (SystemExit, GeneratorExit) as end:
        if not ends_process(end):
            raise
        raise ConfigError(
            f"your own code would end the process{own_place(end)} ({type(end).__name__}): expected it to "
            "return, or to raise another exception"
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
    with in_words(ConfigError, f"{target}: importing {place.module} failed"):
        value: Any = importlib.import_module(place.module)
    for name in place.attribute.split("."):
        if not hasattr(value, name):
            public = [(n, of) for n, of in vars(value).items() if not n.startswith("_") and callable(of)]
            known = [n for n, of in public if getattr(of, "__module__", place.module) == place.module]  # not imported
            some = f"{nearest(name, known)}: expected one of {', '.join(known) or 'none'}"
            raise ConfigError(f"{target}: {place.module} has no {name!r}{some}")
        value = getattr(value, name)
    return value


def accepted(spec: Spec, offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of ``offered`` that the object that ``spec`` names has as parameters, by its signature."""
    try:
        taken = inspect.signature(load(spec)).parameters
    except (TypeError, ValueError):
        return {}
    return {name: value for name, value in offered.items() if name in taken}


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
        raise ConfigError(f"{label(spec)} refuses its arguments{own_place(error)}: {error}") from error
