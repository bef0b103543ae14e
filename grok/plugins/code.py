"""Finds the modules behind import paths and hashes their text, without importing them.

A module of the user's own folder (or of a package in editable installation) is read as text, with the modules of the
same folder that it imports. Of an installed package the fingerprint has the version and the hash of the module's file.
Imports other than by ``import`` statements, other installed packages that the code imports, and data files are not
detected.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grok.errors import ConfigError
from grok.plugins.installed import DIGITS, OURS, fingerprint_of_installed, version_of


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
    if parts[0] not in sys.stdlib_module_names and parts[0] not in OURS:
        for count in range(len(parts) - 1, 0, -1):
            if _file(folder, ".".join(parts[:count])) is not None:
                return ".".join(parts[:count]), ".".join(parts[count:]), folder
    for count in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:count])
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, AttributeError, ValueError):
            continue
        if spec is not None:
            root = _source_root(module, spec.origin)
            return module, ".".join(parts[count:]), root
    raise ConfigError(
        f"{target}: there is no module {'.'.join(parts[:-1])!r} in {folder} and none is installed; "
        f"{option} names the folder that has it"
    )


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
        if name in sources or name.split(".")[0] in sys.stdlib_module_names or name.split(".")[0] in OURS:
            continue
        file = _file(root, name)
        if file is None:
            folder = root.joinpath(*name.split("."))
            if "." in name or any(other.startswith(f"{name}.") for other in sources):
                waiting += [name.rpartition(".")[0]] if "." in name and folder.is_dir() else []
                if folder.is_dir():
                    sources[name] = Source(str(folder / "__init__.py"), "", package=True)
            continue
        text = _text(file)
        sources[name] = Source(str(file), text, package=file.name == "__init__.py")
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        waiting += _imported(file, text, name if sources[name].package else name.rpartition(".")[0])
    return sources


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read as Python ({error})") from error


def _imported(file: Path, text: str, package: str) -> Iterator[str]:
    """Yield the absolute names of the modules that ``text``, a module in ``package``, may import."""
    try:
        tree = ast.parse(text, str(file))
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"{file}{line} is not Python: {getattr(error, 'msg', error)}") from error
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
