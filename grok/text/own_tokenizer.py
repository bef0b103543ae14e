"""A tokeniser of the user's own: fitted to text once, stored as JSON, imported only if a command names its import path.

Its class has ``vocab_size``, ``encode(text)``, ``decode(ids)`` and ``state()`` (JSON values), and is constructed by
``CLASS.fit(texts)`` and ``CLASS(state)``. The id ``vocab_size`` ends documents.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from grok.errors import DataError, GrokError
from grok.plugins import active, load
from grok.text.tokenizers import END_OF_TEXT, OWN_FORMAT, Tokenizer, Tokens

_IMPORT_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def is_import_path(name: str) -> bool:
    """Return whether ``name`` is MODULE.NAME rather than a file.

    >>> is_import_path("words.Words"), is_import_path("tokenizer.json"), is_import_path("char")
    (True, False, False)
    """
    return bool(_IMPORT_PATH.fullmatch(name)) and not name.endswith(".json") and not Path(name).is_file()


class OwnTokenizer(Tokenizer):
    """A tokeniser whose file names the user's own code.

    If the command does not name that code, nothing is imported: ids are then decoded as numbers, and text cannot be
    encoded.
    """

    kind = "own"
    piecewise = False

    def __init__(self, definition: str) -> None:
        """``definition`` is the content of its file.

        Raises:
            DataError: the command names the code, and the code differs from that which made the ids.
        """
        content = json.loads(definition)
        self._definition = definition
        self.target, self.vocab_size = str(content["target"]), int(content["vocab_size"])
        self._end = self.vocab_size - 1
        self.eot_id = self._end
        self._made: Any = None
        place = active().targets.get(self.target)
        if place is None:
            return
        if place.fingerprint != content["code"]:
            raise DataError(
                f"the tokeniser {self.target} has changed since these tokens were made with it (its code was "
                f"{content['code']} and is {place.fingerprint}): run `grok prepare` again"
            )
        with self._errors_of("its constructor"):
            self._made = load(self.target)(content["state"])

    @classmethod
    def fit(cls, target: str, texts: Iterable[str]) -> OwnTokenizer:
        """Return the tokeniser that the class ``target`` fits to ``texts``.

        Raises:
            ConfigError: the class cannot be imported.
            DataError: fitting fails, or a method is missing.
        """
        code = load(target)
        try:
            made = code.fit(texts)
            size, state = int(made.vocab_size), json.loads(json.dumps(made.state()))
        except Exception as error:
            raise DataError(f"--tokenizer {target}: fit() fails ({type(error).__name__}: {error})") from error
        content = {
            "format": OWN_FORMAT,
            "kind": cls.kind,
            "target": target,
            "code": active().targets[target].fingerprint,
            "vocab_size": size + 1,
            "state": state,
        }
        return cls(json.dumps(content))

    def refuse_unnamed(self) -> None:
        """Refuse to make ids or text without the code.

        Raises:
            DataError: the command does not name it.
        """
        if self._made is None:
            raise DataError(
                f"the tokeniser {self.target} is code outside this package, and a corpus may not choose what is "
                f"imported: if you trust that code, name it again, data.tokenizer={self.target} for a run, "
                f"--tokenizer-code {self.target} for `grok prepare`, --tokenizer {self.target} for another command"
            )

    @contextmanager
    def _errors_of(self, method: str) -> Iterator[None]:
        try:
            yield
        except GrokError:
            raise
        except Exception as error:
            raise DataError(
                f"the tokeniser {self.target} fails in {method} ({type(error).__name__}: {error})"
            ) from error

    def encode_plain(self, texts: Sequence[str]) -> list[Tokens]:
        self.refuse_unnamed()
        return [self._encode_one(text) for text in texts]

    def _encode_one(self, text: str) -> Tokens:
        with self._errors_of("encode()"):
            ids = np.array(list(self._made.encode(text)), dtype=np.int64)
        if len(ids) and not (ids.min() >= 0 and ids.max() < self._end):
            raise DataError(
                f"{self.target} returned ids from {ids.min()} to {ids.max()}: expected 0 to {self._end - 1}, below its "
                "vocab_size"
            )
        return ids.astype(self.dtype)

    def decode(self, ids: Iterable[int]) -> str:
        parts: list[str] = []
        run: list[int] = []
        for i in [*ids, self._end]:
            if i != self._end:
                run.append(int(i))
                continue
            with self._errors_of("decode()"):
                shown = self._made.decode(run) if self._made is not None else "".join(f"<{n}>" for n in run)
            parts.append(str(shown))
            run = []
        return END_OF_TEXT.join(parts)

    def to_json(self) -> str:
        return self._definition
