"""Output files and folders of commands: refused before the work, or in one line after it."""

from __future__ import annotations

import os
from pathlib import Path

from grok.errors import ConfigError


def refuse_unwritable(option: str, file: Path, *, make_folder: bool = False) -> None:
    """Refuse ``option FILE`` where no file can be written there; ``make_folder``: its folder is made where missing.

    Raises:
        ConfigError: it is a folder, its folder is not there, or nobody may write into it.
    """
    try:
        if file.is_dir():
            raise ConfigError(f"{option} {file} is a folder: give the name of a file")
        if make_folder:
            refuse_unwritable_folder(option, file.parent)
            file.exists()  # raises where the name is too long
            return
        if not file.parent.is_dir():
            raise ConfigError(f"{option} {file}: there is no folder {file.parent}")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise ConfigError(f"{option} {file}: no permission to write there; give another file")
    except OSError as error:  # a name that is too long
        raise ConfigError(f"{option} {file}: no file can have this name ({error.strerror})") from error


def refuse_unwritable_folder(option: str, folder: Path) -> None:
    """Refuse ``option FOLDER`` where no folder can be made or written.

    Raises:
        ConfigError: it or a part of its path is a file, its name is too long, or nobody may write there.
    """
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not nearest.is_dir():
            raise ConfigError(f"{option} {folder}: {nearest} is no folder; give a folder, which is made where missing")
        if not os.access(nearest, os.W_OK):
            raise ConfigError(f"{option} {folder}: no permission to write there; give another folder")
    except OSError as error:
        raise ConfigError(f"{option} {folder}: no folder can have this name ({error.strerror})") from error


def write_text(option: str, file: Path, text: str) -> None:
    """Write ``text`` to the file that ``option`` names.

    Raises:
        ConfigError: the disk refuses.
    """
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option} {file} cannot be written ({error.strerror}): give another file") from error
