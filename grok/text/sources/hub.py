"""Data sets of the Hugging Face hub by name: ``hf://owner/name``, ``hf://owner/name:config`` and ``...@split``.

Needs the ``datasets`` package, and the network unless the package's cache holds the data set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from grok.errors import DataError, one_line
from grok.text.sources.files import InputDigest

PREFIX: Final = "hf://"


def is_hub(name: str) -> bool:
    """Return whether an input names a Hugging Face data set."""
    return name.startswith(PREFIX)


def rows(address: str, columns: Sequence[str]) -> Iterator[str]:
    """Yield the text of each row in the data set's order, from the first of ``columns`` that it has.

    Raises:
        DataError: the package, the network, the data set or the column is missing.
    """
    dataset = _load(address)
    column = next((name for name in columns if name in dataset.column_names), None)
    if column is None:
        raise DataError(f"{address}: no column {' or '.join(columns)}; it has {', '.join(dataset.column_names)}")
    for batch in dataset.select_columns([column]).iter(batch_size=512):
        for text in batch[column]:
            if not isinstance(text, str):
                raise DataError(f"{address}: column {column!r} has a value that is no text: {text!r:.60}")
            yield text


def digest(address: str, columns: Sequence[str]) -> InputDigest:
    """Return the hash of the text of all rows; the hub's version names do not prove the content."""
    hasher, size = hashlib.sha256(), 0
    for text in rows(address, columns):
        data = text.encode()
        hasher.update(len(data).to_bytes(8, "little") + data)
        size += len(data)
    return InputDigest(address.removeprefix(PREFIX), 1, size, hasher.hexdigest())


def _load(address: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{address} needs the `datasets` package: pip install 'grok-lab[hf]'") from error
    name, _, split = address.removeprefix(PREFIX).partition("@")
    name, _, config = name.partition(":")
    try:
        return datasets.load_dataset(name, config or None, split=split or "train")
    except Exception as error:  # the hub's client raises many types when it cannot fetch
        reason = one_line(error)
        raise DataError(
            f"{address} cannot be loaded ({reason}); without a network, download its parquet or text files"
            f" from https://huggingface.co/datasets/{name} and give them with --input FILE..."
        ) from error
