"""Masks secrets in text that is stored or shown.

Masked are the password of a URL, a token in the place of its user, parameters of a URL or of a
connection string with a name like that of a secret, tokens of well-known formats, and the values
of environment variables with such names; also in percent-encoded form. Text that only looks like
a secret is masked, too: stored text is for reading, not for connecting.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

HIDDEN: Final = "***"

_AT: Final = r"(?:@|%40)"
_URL: Final = r"(?::|%3[Aa])(?:\\?/|%2[Ff])+"
"""``://``, plain, percent-encoded, escaped as JSON may have it, or folded to ``:/`` as a path is."""

_PASSWORD: Final = re.compile(rf"({_URL}(?:(?!%3[Aa]|%2[Ff]|%40)[^\s:/@?#'\"])*)(?::|%3[Aa])[^\s]*{_AT}")
"""``user:password@``; the password may have any characters, up to the last ``@``."""

_PASSWORD_OF_A_VALUE: Final = re.compile(
    rf"^([^\s=]*=)?['\"]?([A-Za-z][\w+.-]*{_URL}[^\s:/@?#'\"]*)(?::|%3[Aa]).*{_AT}", re.DOTALL
)
"""The same for a text that is one URL: its password may have spaces and quotes, too."""

_TOKEN_AS_USER: Final = re.compile(rf"({_URL})[A-Za-z0-9_.%~+-]{{20,}}{_AT}")

_NAMED: Final = r"pass|pwd|secret|token|key|credential|auth|sig(?:nature)?\b"
_PARAMETER: Final = re.compile(r"([?&;#])([^=\s&;#?]{1,80})=([^\s&;#'\"]*)")
"""``?password=``, ``&api_key=``; percent-codes in the name are decoded before the comparison."""

_SECRET: Final = (
    r"(?:passwords?|passwd|passphrase|pwd|secret|credentials?|(?:secret|api|access|private|account|storage|signing)"
    r"[_-]?key|(?:access|auth|api|refresh|bearer)[_-]?token)"
)
"""End of the name of a secret."""

_VALUE: Final = r"('[^']*'|\"[^\"]*\"|[^\s,;&'\"]+)"

_ASSIGNED: Final = re.compile(rf"(?i)\b([\w.-]*(?:{_SECRET}|(?:\b|_)pass))(\s*[=:]\s*){_VALUE}")
"""``password=...`` of a connection string or a setting."""

_MEMBER: Final = re.compile(rf"(?i)((?:{_SECRET}|(?:\b|_)(?:pass|token))['\"])(\s*:\s*)('[^']*'|\"[^\"]*\")")
"""``"password": "..."`` of JSON or of a dictionary."""

_TOKEN: Final = re.compile(r"(?i)((?:\b|_)token)(\s*[=:]\s*)(['\"]?[\w.+/~-]{8,}['\"]?)")
"""``token=...``; a short value is a token of a text, not a secret."""

_OPTION: Final = re.compile(rf"(?i)(--[\w-]*(?:{_SECRET}|\bpass|\btoken))(\s+){_VALUE}")
"""``--password ...``"""

_HEADER: Final = re.compile(r"(?i)\b((?:bearer|authorization:\s*\w+))(\s+)([\w.+/=~-]{8,})")
"""``Authorization: Bearer ...``"""

_NAME: Final = re.compile(rf"(?i)(?:^|[\W_])(?:{_SECRET}|pass|token)$")
"""Matches the name of a setting whose value is a secret."""

_FORMS: Final = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|npm_[A-Za-z0-9]{20,}|AIza[\w-]{20,}|pypi-[\w-]{20,}"
    r"|ya29\.[\w-]{20,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
"""Tokens of Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS, npm, Google and PyPI, and JSON web tokens."""

_VARIABLE: Final = re.compile(rf"(?i)(?:{_SECRET}|(?:^|_)PASS|TOKEN)$")
_NOT_SECRET: Final = frozenset({"PWD", "OLDPWD"})
"""Variables with such a name whose value is the current folder."""


def without_passwords(text: str) -> str:
    """Return ``text`` with every secret replaced by ``***``.

    >>> without_passwords("study.storage=postgresql://me:se/cr@t@host:5432/studies")
    'study.storage=postgresql://me:***@host:5432/studies'
    >>> without_passwords("mysql://host/db?user=me&password=secret&ssl=1")
    'mysql://host/db?user=me&password=***&ssl=1'
    >>> without_passwords("host=db user=me password=se/cret"), without_passwords("data.tokenizer=gpt2 tokens=3")
    ('host=db user=me password=***', 'data.tokenizer=gpt2 tokens=3')
    """
    for value in _of_environment():
        if value in text:
            text = text.replace(value, HIDDEN)
    if _may_hold_url(text):
        text = _PASSWORD_OF_A_VALUE.sub(_hide_password_of_a_value, text)
        text = _PASSWORD.sub(rf"\1:{HIDDEN}@", text)
        text = _TOKEN_AS_USER.sub(rf"\1{HIDDEN}@", text)
        text = _PARAMETER.sub(_hide_parameter, text)
    if "=" in text or ":" in text:
        for form in (_ASSIGNED, _TOKEN, _MEMBER):
            text = form.sub(rf"\1\2{HIDDEN}", text)
    for form in (_OPTION, _HEADER):
        text = form.sub(rf"\1\2{HIDDEN}", text)
    return _FORMS.sub(HIDDEN, text)


def without_secrets(value: Any) -> Any:
    """Return nested settings with every secret replaced by ``***``."""
    if isinstance(value, str):
        return without_passwords(value)
    if isinstance(value, Mapping):
        return {key: HIDDEN if _is_secret(key, item) else without_secrets(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item) for item in value]
    return value


def _is_secret(name: object, value: Any) -> bool:
    return isinstance(value, str) and value != "" and _NAME.search(str(name)) is not None


def _may_hold_url(text: str) -> bool:
    return ":/" in text or ":\\/" in text or "%3A" in text or "%3a" in text or "%2F" in text or "%2f" in text


def _hide_password_of_a_value(match: re.Match[str]) -> str:
    return f"{match[1] or ''}{match[2]}:{HIDDEN}@"


def _hide_parameter(match: re.Match[str]) -> str:
    named = re.search(_NAMED, unquote(match[2]), re.IGNORECASE)
    return f"{match[1]}{match[2]}={HIDDEN}" if named else match[0]


@functools.cache
def _of_environment() -> tuple[str, ...]:
    """Return the values of environment variables with the name of a secret, without short values and files' paths."""
    return tuple(
        value
        for name, value in os.environ.items()
        if len(value) >= 8 and name not in _NOT_SECRET and _VARIABLE.search(name) and not os.path.exists(value)  # noqa: PTH110  (a long value is no path, and no error)
    )
