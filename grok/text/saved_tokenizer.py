"""Loads a saved tokeniser."""

from __future__ import annotations

import json
from pathlib import Path

from grok.errors import DataError, GrokError
from grok.text.own_tokenizer import OwnTokenizer
from grok.text.tokenizers import (
    END_OF_TEXT,
    OWN_FORMAT,
    ByteTokenizer,
    CharTokenizer,
    SubwordTokenizer,
    Tokenizer,
)


def load_tokenizer(path: Path, kind: str = "file", eot: str = END_OF_TEXT) -> Tokenizer:
    """Return the tokeniser saved at ``path``: one of this project's files or any ``tokenizer.json``.

    Raises:
        DataError: the file is missing or is no tokeniser, or the user's own code that it names has changed.
    """
    try:
        definition = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"tokeniser {path} cannot be read ({error}): expected a tokenizer.json") from error
    try:
        content = json.loads(definition)
        if content.get("format") == OWN_FORMAT and content["kind"] == "byte":
            return ByteTokenizer()
        if content.get("format") == OWN_FORMAT and content["kind"] == "char":
            return CharTokenizer(content["characters"], content["end_of_text"])
        if content.get("format") == OWN_FORMAT and content["kind"] == OwnTokenizer.kind:
            return OwnTokenizer(definition)
        return SubwordTokenizer(definition, kind, eot)
    except GrokError:
        raise
    except Exception as error:  # `tokenizers` raises plain Exception for a file that is not its own
        raise DataError(f"tokeniser {path} cannot be read as a tokenizer.json ({error})") from error
