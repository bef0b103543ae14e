"""The table of the user's own task: built once, cached while its code is the same."""

from __future__ import annotations

import functools
import json

from grok.config.fields import canonical_json
from grok.errors import ConfigError, GrokError
from grok.plugins import Examples, Operation, Spec, build, label, load, place_in_own_code


def table_of(spec: Spec) -> Operation | Examples:
    """Return the task that the user's own code builds.

    Raises:
        ConfigError: the command does not name that code, or it returns another type.
    """
    return _table(canonical_json(dict(spec)), load(spec))


@functools.lru_cache(maxsize=16)
def _table(text: str, code: object) -> Operation | Examples:
    spec = json.loads(text)
    try:
        made = build(spec)
    except (GrokError, MemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"task.plugin={label(spec)} fails{place_in_own_code(error)} ({reason})") from error
    if not isinstance(made, (Operation, Examples)):
        raise ConfigError(
            f"task.plugin={label(spec)} returned a {type(made).__name__}: expected a grok.plugins.Operation or Examples"
        )
    return made


def size_of(spec: Spec, modulus: int) -> int:
    """Return the number of examples of the user's own task.

    Raises:
        ConfigError: see :func:`table_of`; or ``task.modulus`` is not the number of the operation's elements.
    """
    table = table_of(spec)
    if isinstance(table, Examples):
        return len(table)
    if len(table.table) != modulus:
        raise ConfigError(
            f"task.modulus={modulus}: {label(spec)} is an operation on {len(table.table)} elements, "
            f"set task.modulus={len(table.table)}"
        )
    return modulus * modulus
