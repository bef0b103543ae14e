"""Encodes text as token files: worker processes encode chunks, this process writes them in order."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grok.errors import DataError
from grok.plugins import Code, activate, active
from grok.text.corpus import SplitWriter, tokenizer_entry
from grok.text.parallel import Say, Throughput, in_order, pooled
from grok.text.saved_tokenizer import load_tokenizer
from grok.text.sources import Source, form_of
from grok.text.sources.wikitext import detokenize
from grok.text.splitting import Cut, Job, jobs_of
from grok.text.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Encoded:
    """The ids of one job."""

    split: str
    ids: NDArray[np.unsignedinteger[Any]]
    """``[tokens]``."""
    ends: NDArray[np.int64]
    """``[documents that end in the job]``: number of the job's ids up to the document's end."""
    bytes: int
    words: int


def encode(
    folder: Path,
    tokenizer: Tokenizer,
    sources: Mapping[str, Source],
    cut: Cut,
    *,
    form: str,
    written_apart: bool,
    workers: int,
    total: int,
    say: Say,
) -> dict[str, dict[str, Any]]:
    """Write all splits' token files into ``folder`` and return their manifest entries.

    Args:
        folder: holds ``tokenizer.json`` already.
        tokenizer: makes the ids.
        sources: ``input``, and the splits that have files of their own.
        cut: the begin of the validation split in ``input``.
        form: the name of the form of the text, whose rule counts words.
        written_apart: apply WikiText's detokeniser.
        workers: number of processes.
        total: bytes of the text, about; for the progress line.
        say: takes a line of progress.
    """
    names = ["train", "val", *(name for name in sources if name not in ("input", "val"))]
    worker = functools.partial(
        _encode_chunk,
        file=folder / "tokenizer.json",
        kind=tokenizer.kind,
        eot=tokenizer_entry(tokenizer)["eot"],
        known_hash=tokenizer.hash,
        form=form,
        written_apart=written_apart,
        one_thread=pooled(workers, total),
        code=active(),
    )
    progress = Throughput("encoding", total, say)
    jobs = ((job,) for job in jobs_of(sources, cut, whole=not tokenizer.piecewise))
    with ExitStack() as files:
        writers = {
            name: files.enter_context(SplitWriter(folder, name, tokenizer.vocab_size, tokenizer.dtype))
            for name in names
        }
        for encoded in in_order(worker, jobs, workers, total):
            writers[encoded.split].write(encoded.ids, encoded.ends, encoded.bytes, encoded.words)
            progress.add(encoded.bytes)
        progress.finish()
        return {name: writer.finish() for name, writer in writers.items()}


@functools.lru_cache(maxsize=1)
def _loaded_tokenizer(file: Path, kind: str, eot: str, known_hash: str) -> Tokenizer:
    """Return the tokeniser, loaded once per process; with the hash in the key a changed file is loaded again."""
    tokenizer = load_tokenizer(file, kind, eot)
    assert tokenizer.hash == known_hash
    return tokenizer


def _encode_chunk(
    job: Job,
    *,
    file: Path,
    kind: str,
    eot: str,
    known_hash: str,
    form: str,
    written_apart: bool,
    one_thread: bool,
    code: Code,
) -> Encoded:
    activate(code)
    if one_thread:  # in a worker process: parallelism comes from the number of workers
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = _loaded_tokenizer(file, kind, eot, known_hash)
    texts = [detokenize(text) for text in job.texts] if written_apart else job.texts
    parts: list[NDArray[np.unsignedinteger[Any]]] = []
    ends: list[int] = []
    length = 0
    for ids, ends_document in zip(tokenizer.encode_plain(texts), job.ends, strict=True):
        parts.append(ids)
        length += len(ids)
        if ends_document:
            if tokenizer.eot_id is not None:
                parts.append(np.array([tokenizer.eot_id], dtype=tokenizer.dtype))
                length += 1
            ends.append(length)
    together = np.concatenate(parts)
    if tokenizer.eot_id is not None and np.count_nonzero(together == tokenizer.eot_id) != len(ends):
        raise DataError(
            f"{job.split}: the tokeniser makes its end token {eot!r} (id {tokenizer.eot_id}) out of text inside a "
            "document: take that text out of the input, or name a token with --eot that no text becomes"
        )
    return Encoded(
        split=job.split,
        ids=together,
        ends=np.array(ends, dtype=np.int64),
        bytes=sum(len(text.encode()) for text in job.texts),
        words=sum(form_of(form).words(text) for text in job.texts),
    )
