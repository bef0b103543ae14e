"""Output files of commands: an impossible one is refused before the work; a failure afterwards is one line."""

from __future__ import annotations

import os
from pathlib import Path

from grok.errors import ConfigError


def refuse_unwritable(option: str, file: Path) -> None:
    """Refuse ``option FILE`` where no file can be written there.

    Raises:
        ConfigError: it is a folder, its folder is not there, or nobody may write into it.
    """
    if file.is_dir():
        raise ConfigError(f"{option} {file} is a folder: give the name of a file")
    if not file.parent.is_dir():
        raise ConfigError(f"{option} {file}: there is no folder {file.parent}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"{option} {file}: no permission to write there; give another file")


def write_text(option: str, file: Path, text: str) -> None:
    """Write ``text`` to the file that ``option`` names.

    Raises:
        ConfigError: the disk refuses.
    """
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option} {file} cannot be written ({error.strerror}): give another file") from error
