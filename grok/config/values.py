"""A value as it is typed: the one writer of values in Hydra's grammar of overrides."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

NUMBER: Final = r"[+-]?(inf|nan|\.?\d[\d_.]*(e[+-]?\d[\d_]*)?)"
NO_TEXT: Final = re.compile(rf"(?i)\s*(\[.*\]|null|true|false|{NUMBER})\s*")
"""Values that are no text in Hydra's grammar."""

_BARE: Final = re.compile(r"[A-Za-z_./][A-Za-z0-9_./@+-]*")
"""Text without special characters: in Hydra's grammar it is itself, unless it is :data:`NO_TEXT`."""


def literal(value: Any) -> str:
    """Return ``value`` in Hydra's override grammar; Hydra parses it to an equal value.

    Raises:
        TypeError: it is no number, text, list or map.

    >>> literal(None), literal(True), literal(0.1), literal([0.9, 0.98]), literal({"k": "a,b"})
    ('null', 'true', '0.1', '[0.9,0.98]', '{k:"a,b"}')
    >>> literal("results/store"), literal("2024_11_21"), literal("null")
    ('results/store', '"2024_11_21"', '"null"')
    """
    value = value.item() if hasattr(value, "item") else value  # a NumPy scalar
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(literal, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{literal(item)}" for key, item in value.items()) + "}"
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(type(value).__name__)
    text = str(value)
    if _BARE.fullmatch(text) and not NO_TEXT.fullmatch(text):
        return text
    # Inside quotes a backslash escapes only a quote, a dollar of a reference, or a backslash before one of these.
    # Double quotes, because the shell's quotes are single.
    escaped = re.sub(r'(\\*)("|\$\{)', r"\1\1\\\2", text)
    return '"' + re.sub(r"(\\+)$", r"\1\1", escaped) + '"'
