"""Prepares a corpus folder from text: scan, split, encode on several cores, report, one rename.

The text is read twice: once to count and hash it and to measure its quality, once to encode it. A new
BPE reads the train split in between. Worker processes handle it in chunks, so memory does not grow
with the text. An existing corpus of the same bytes, tokeniser and options is not made again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from grok.errors import DataError
from grok.files import clear_unfinished, disk_errors, staged_folder
from grok.text import documents, quality, tokenizers
from grok.text.corpus import MANIFEST_VERSION, Corpus, SplitWriter, data_hash, fingerprint, open_corpus, tokenizer_entry
from grok.text.documents import FORMS, Piece, Source, detokenize
from grok.text.quality import TextScan
from grok.untrusted import read_json

# Processes a stream of chunks on several cores; results come in order, with lines of progress.

POOL_BYTES: Final = 2**25
"""Bytes of text below which no worker processes are started: they would cost more time than they save."""

Say = Callable[[str], None]
R = TypeVar("R")


def pooled(workers: int, total: int) -> bool:
    """Return whether ``total`` bytes are worth worker processes."""
    return workers > 1 and total >= POOL_BYTES


def in_order(function: Callable[..., R], jobs: Iterable[tuple[Any, ...]], workers: int, total: int) -> Iterator[R]:
    """Yield ``function(*job)`` for each job in order, computed in this process or in ``workers`` processes.

    At most ``2 * workers + 1`` jobs are in memory.

    Raises:
        DataError: a worker process died.
    """
    if not pooled(workers, total):
        yield from (function(*job) for job in jobs)
        return
    from joblib.externals.loky import get_reusable_executor
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    executor = get_reusable_executor(max_workers=workers)
    # Not joblib.Parallel: its generator dispatches jobs without limit while nobody reads the results.
    pending: deque[Future[R]] = deque()
    try:
        for job in jobs:
            pending.append(executor.submit(function, *job))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except TerminatedWorkerError as error:
        raise DataError(
            f"a worker process died, perhaps for lack of memory: try fewer than {workers} --workers"
        ) from error
    finally:
        for future in pending:
            future.cancel()


SECONDS: Final = 5.0
"""Seconds between two lines of progress."""


def reported(results: Iterable[R], size: Callable[[R], int], what: str, total: int, say: Say) -> Iterator[R]:
    """Yield ``results``, each for ``size(result)`` of ``total`` bytes; ``say`` takes lines of progress."""
    done, began = 0, time.monotonic()
    said_at = began
    for result in results:
        yield result
        done += size(result)
        now = time.monotonic()
        if now - said_at >= SECONDS:
            said_at, rate = now, done / (now - began)
            say(
                f"{what}: {done / 1e6:,.0f} of about {total / 1e6:,.0f} MB, {rate / 1e6:,.1f} MB/s,"
                f" about {max(0.0, (total - done) / rate):,.0f} s left"
            )
    say(f"{what}: {done / 1e6:,.1f} MB in {time.monotonic() - began:,.1f} s")


# Divides the text into splits, and each split into chunks for the workers.

CHUNK_CHARACTERS: Final = 2**21
CHUNK_PIECES: Final = 8192


@dataclass(frozen=True, slots=True)
class Job:
    """A chunk: some pieces of one split, for one worker."""

    split: str
    texts: list[str]
    ends: list[bool]
    """For each text whether it ends a document."""


class Cut:
    """The place in the input where the train split ends and the validation split begins."""

    def __init__(self, scans: Mapping[str, TextScan], val_fraction: float) -> None:
        """Leave ``val_fraction`` of the documents, or of a single document's characters, for val.

        Raises:
            DataError: a source has no text, or the text is too short.
        """
        for name, part in scans.items():
            if part.documents == 0:
                raise DataError(f"{name}: it has no text")
        scan = scans["input"]
        self.train_documents = scan.documents
        """Number of the input's documents in the train split."""
        self.train_characters: int | None = None
        """Of an input with a single document: number of its characters in the train split. Otherwise None."""
        if "val" in scans:
            return
        if scan.documents > 1:
            self.train_documents -= min(max(1, round(scan.documents * val_fraction)), scan.documents - 1)
            return
        self.train_characters = int(scan.characters * (1 - val_fraction))
        if not 0 < self.train_characters < scan.characters:
            raise DataError(
                f"a text of {scan.characters} characters cannot be split at --val-fraction {val_fraction}: use"
                " more text"
            )

    def leaks(self, scans: Mapping[str, TextScan]) -> dict[str, int]:
        """Return for each split the number of its documents that are also in train, compared by their hashes."""
        digests = scans["input"].digests()
        train = digests[: self.train_documents]
        held_out = {name: scan.digests() for name, scan in scans.items() if name != "input"}
        if self.train_characters is None and "val" not in held_out:
            held_out["val"] = digests[self.train_documents :]
        return {name: int(np.isin(part, train).sum()) for name, part in held_out.items()}


def chunks_of(split: str, pieces: Iterable[Piece]) -> Iterator[Job]:
    """Yield the pieces in chunks of about ``CHUNK_CHARACTERS`` characters or ``CHUNK_PIECES`` pieces."""
    texts: list[str] = []
    ends: list[bool] = []
    size = 0
    for piece in pieces:
        texts.append(piece.text)
        ends.append(piece.ends_document)
        size += len(piece.text)
        if size >= CHUNK_CHARACTERS or len(texts) >= CHUNK_PIECES:
            yield Job(split, texts, ends)
            texts, ends, size = [], [], 0
    if texts:
        yield Job(split, texts, ends)


def jobs_of(sources: Mapping[str, Source], cut: Cut, *, whole: bool = False) -> Iterator[Job]:
    """Yield all text as jobs: train first, each split in order.

    Args:
        sources: ``input``, and the splits that have files of their own.
        cut: the begin of the validation split in ``input``.
        whole: join the pieces of each document.
    """

    def pieces(name: str) -> Iterator[Piece]:
        kept = documents.without_blank_documents(sources[name].pieces())
        return documents.whole_documents(kept) if whole else kept

    stream = pieces("input")
    if cut.train_characters is None:
        yield from chunks_of("train", _take_documents(stream, cut.train_documents))
        if "val" not in sources:
            yield from chunks_of("val", stream)
    else:
        yield from chunks_of("train", _continuous(pieces("input"), 0, cut.train_characters))
        yield from chunks_of("val", _continuous(pieces("input"), cut.train_characters, None))
    for name in sources:
        if name != "input":
            yield from chunks_of(name, pieces(name))


def _take_documents(pieces: Iterator[Piece], count: int) -> Iterator[Piece]:
    """Yield the pieces of the next ``count`` documents; the iterator ``pieces`` keeps the others."""
    while count > 0:
        piece = next(pieces)
        count -= piece.ends_document
        yield piece


def _continuous(pieces: Iterable[Piece], start: int, stop: int | None) -> Iterator[Piece]:
    """Yield characters ``start`` to ``stop`` of one text, in pieces that end no document."""
    position = 0
    for piece in pieces:
        end = position + len(piece.text)
        text = piece.text[max(0, start - position) : None if stop is None else max(0, stop - position)]
        if text:
            yield Piece(text, False)
        position = end


# Encodes text as token files: worker processes encode chunks, this process writes them in order.


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


@functools.lru_cache(maxsize=1)
def _loaded_tokenizer(file: Path, kind: str, eot: str, known_hash: str) -> tokenizers.Tokenizer:
    """Return the tokeniser, loaded once per process; with the hash in the key a changed file is loaded again."""
    tokenizer = tokenizers.load_tokenizer(file, kind, eot)
    assert tokenizer.hash == known_hash
    return tokenizer


def _encode_chunk(job: Job, *, file: Path, entry: Mapping[str, Any], request: Request, one_thread: bool) -> Encoded:
    if one_thread:  # in a worker process: parallelism comes from the number of workers
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = _loaded_tokenizer(file, entry["kind"], entry["eot"], entry["hash"])
    texts = [detokenize(text) for text in job.texts] if request.detokenize else job.texts
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
            f"{job.split}: the tokeniser makes its end token {entry['eot']!r} (id {tokenizer.eot_id}) out of text "
            "inside a document: take that text out of the input, or name a token with --eot that no text becomes"
        )
    return Encoded(
        split=job.split,
        ids=together,
        ends=np.array(ends, dtype=np.int64),
        bytes=sum(len(text.encode()) for text in job.texts),
        words=sum(FORMS[request.form].words(text) for text in job.texts),
    )


# Prepares a corpus folder from text: scan, tokenise, report, and one rename of the finished folder.

PREPARATION_VERSION: Final = 1
"""Raised when a change of the code gives other tokens for the same text and options: older corpora are rebuilt."""

LARGEST_VOCABULARY: Final = 1_000_000
"""Largest number of ids of a new BPE: several times the largest published vocabulary."""

_OWN_FILES: Final = {"manifest.json", "tokenizer.json", "corpus.md", "corpus.json"} | {
    f"{split}.{kind}" for split in ("train", "val", "test") for kind in ("bin", "docs")
}
"""All files of a corpus."""

BPE_CHARACTERS: Final = 2**31
"""Number of characters of the train split, from its beginning, to which a new BPE is fitted."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The inputs and options of one preparation."""

    form: str
    inputs: tuple[str, ...]
    out: Path
    tokenizer: str
    """``char``, ``byte``, ``bpe``, ``gpt2``, or the path of a ``tokenizer.json``."""
    split_files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Inputs of the splits ``val`` and ``test`` that have their own; by default val is the last part of the input."""
    val_fraction: float = 0.1
    vocab_size: int = 8192
    vocab: Path | None = None
    eot: str = tokenizers.END_OF_TEXT
    text_field: str | None = None
    detokenize: bool = False
    filters: documents.Filters = documents.Filters()
    workers: int = 1


def prepare(request: Request, say: Say = lambda line: None) -> tuple[Corpus, bool]:
    """Return the prepared corpus, and whether it existed already.

    Raises:
        DataError: an input, a tokeniser or an option cannot be used; nothing was changed.
    """
    _check(request)
    work = Preparation(request, say)
    if (existing := work.existing()) is not None:
        return existing, True
    if request.out.exists():
        _refuse_foreign(request.out)
    # only errors of the output disk arrive here: readers of inputs raise DataError themselves
    with disk_errors(f"--out {request.out} cannot be written", DataError, "the existing files are unchanged"):
        request.out.parent.mkdir(parents=True, exist_ok=True)
        clear_unfinished(request.out.parent, request.out)  # of killed commands
        with staged_folder(request.out) as folder:
            work.fill(folder)
    return open_corpus(request.out), False


def _check(request: Request) -> None:
    if request.val_fraction == 0 and "val" not in request.split_files:
        raise DataError("--val-fraction 0 leaves no validation split: give --split-file val=FILE, or a fraction")
    if request.tokenizer == "bpe" and not 257 <= request.vocab_size <= LARGEST_VOCABULARY:
        raise DataError(
            f"--vocab-size {request.vocab_size}: a byte-level BPE needs at least 257 (256 bytes and "
            f"{tokenizers.END_OF_TEXT}) and at most {LARGEST_VOCABULARY:,}"
        )
    if request.detokenize and request.form != "wikitext":
        raise DataError("--detokenize is for wikitext, whose punctuation has spaces around it; other text needs none")
    if request.detokenize and request.tokenizer == "char":
        raise DataError(
            "--detokenize needs byte, bpe, gpt2 or a tokenizer.json: a char vocabulary is taken from the text before it"
        )
    if request.out.exists() and not (request.out / "manifest.json").is_file():
        _refuse_foreign(request.out)  # at once; a folder with a corpus may be up to date, so that nothing is lost


def _refuse_foreign(out: Path) -> None:
    """Refuse a folder with anything but a corpus in it: the new corpus replaces the whole folder."""
    if not out.is_dir():
        raise DataError(f"--out {out} is a file: expected a folder")
    names = {path.name for path in out.iterdir()}
    ours = "manifest.json" in names and _may_be_manifest(out / "manifest.json")
    if foreign := sorted(names - _OWN_FILES if ours else names):
        shown = ", ".join(foreign[:5]) + (", ..." if len(foreign) > 5 else "")
        raise DataError(
            f"--out {out} has other files, which would be lost ({shown}): move them away, or name a new or empty folder"
        )


def _may_be_manifest(file: Path) -> bool:
    """Return whether the file is the manifest of a corpus, or a damaged one; other programs have such a file, too."""
    try:
        content = read_json(file, follow=True)
    except (OSError, ValueError):
        return True
    return isinstance(content, dict) and "splits" in content


def _given_tokenizer(request: Request) -> tokenizers.Tokenizer | None:
    """Return the tokeniser if it does not depend on the text, or None if it must be fitted."""
    if request.tokenizer in ("char", "bpe"):
        return None
    if request.tokenizer == "byte":
        return tokenizers.ByteTokenizer()
    if request.tokenizer == "gpt2":
        return tokenizers.gpt2_tokenizer(request.vocab)
    if not Path(request.tokenizer).is_file():
        raise DataError(
            f"--tokenizer {request.tokenizer}: expected char, byte, bpe, gpt2, or a tokenizer.json that exists"
        )
    return tokenizers.load_tokenizer(Path(request.tokenizer), eot=request.eot)


class Preparation:
    """One preparation, from its inputs to the files of the corpus."""

    def __init__(self, request: Request, say: Say) -> None:
        """Read and hash all inputs; ``say`` takes lines of progress."""
        self.request, self.say = request, say
        self.sources = {
            name: Source(request.form, inputs, request.text_field, request.filters)
            for name, inputs in {"input": request.inputs, **request.split_files}.items()
        }
        """``input``, and the splits that have files of their own."""
        self.given = _given_tokenizer(request)
        self.digests = {name: source.digests(request.workers) for name, source in self.sources.items()}
        self.sizes = {name: sum(d.bytes for d in ds) for name, ds in self.digests.items()}
        self.key = self._key()

    def _key(self) -> str:
        """Return the hash of everything that decides the tokens: source bytes, tokeniser and options, no path."""
        request, given = self.request, self.given
        eot = tokenizer_entry(given)["eot"] if given else tokenizers.END_OF_TEXT
        made = f"bpe:{request.vocab_size}" if request.tokenizer == "bpe" else request.tokenizer
        readings = {name: source.reading() for name, source in self.sources.items()}
        content = {
            "version": PREPARATION_VERSION,
            "form": request.form,
            "text_field": request.text_field,
            "sources": {name: [d.sha256 for d in ds] for name, ds in self.digests.items()},
            "tokenizer": given.hash if given else made,
            "val_fraction": request.val_fraction,
            "detokenize": request.detokenize,
            # only where they are not the usual ones, so that corpora from before these fields stay
            **({"eot": eot} if eot != tokenizers.END_OF_TEXT else {}),
            **({"reading": readings} if any(readings.values()) else {}),
            **({"filters": asdict(request.filters)} if request.filters != documents.Filters() else {}),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def existing(self) -> Corpus | None:
        """Return the corpus that is there already if it has this key and its bytes are right, else None."""
        out = self.request.out
        if not (out / "manifest.json").is_file():
            return None
        try:
            corpus = open_corpus(out)
            if corpus.manifest["key"] != self.key:
                self.say(f"rebuilding {out}: its source, tokeniser or options have changed")
                return None
            corpus.verify()
        except DataError as error:
            self.say(f"rebuilding: {error}")
            return None
        return corpus

    def fill(self, folder: Path) -> None:
        """Write all files of the corpus into ``folder``."""
        scans = {name: self._scan(name) for name in self.sources}
        cut = Cut(scans, self.request.val_fraction)
        tokenizer = self.given or self._new_tokenizer(scans, cut)
        (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        manifest = self._manifest(tokenizer, self._encode(folder, tokenizer, cut), cut)
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        content = quality.report(open_corpus(folder), scans, cut.leaks(scans))
        (folder / "corpus.json").write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
        (folder / "corpus.md").write_text(quality.to_markdown(content, self.request.out.name), encoding="utf-8")

    def _scan(self, name: str) -> TextScan:
        scan, workers, total = TextScan(), self.request.workers, self.sizes[name]

        def counted() -> Iterator[Piece]:
            begins = True
            for piece in self.sources[name].pieces(scan.filtered):
                if documents.is_blank(piece, begins):
                    scan.blank_documents += 1
                else:
                    scan.quality.read(piece.text)
                    yield piece
                begins = piece.ends_document

        jobs = ((job.texts, job.ends) for job in chunks_of(name, counted()))
        chunks = in_order(quality.scan_chunk, jobs, workers, total)
        for chunk in reported(chunks, lambda chunk: sum(chunk.sizes), f"reading {name}", total, self.say):
            scan.add(chunk)
        scan.quality.finish()
        return scan

    def _new_tokenizer(self, scans: dict[str, TextScan], cut: Cut) -> tokenizers.Tokenizer:
        if self.request.tokenizer == "char":
            several = any(scan.documents > 1 for scan in scans.values())
            codes = {code for scan in scans.values() for code in scan.character_counts}
            return tokenizers.CharTokenizer(map(chr, codes), end_of_text=several)
        ids = self.request.vocab_size

        def texts() -> Iterator[str]:
            left = BPE_CHARACTERS
            for job in jobs_of(self.sources, cut):
                if job.split != "train" or left <= 0:
                    return
                for text in job.texts:
                    left -= len(text)
                    yield detokenize(text) if self.request.detokenize else text

        self.say(f"fitting a BPE of {ids:,} ids to the train split")
        tokenizer = tokenizers.train_bpe(texts(), ids)
        if tokenizer.vocab_size < ids:
            self.say(f"the text is too small for {ids:,} ids: the BPE has {tokenizer.vocab_size:,}")
        return tokenizer

    def _encode(self, folder: Path, tokenizer: tokenizers.Tokenizer, cut: Cut) -> dict[str, dict[str, Any]]:
        """Write all splits' token files into ``folder``, which holds the tokeniser; return their manifest entries."""
        workers, total = self.request.workers, sum(self.sizes.values())
        worker = functools.partial(
            _encode_chunk,
            file=folder / "tokenizer.json",
            entry=tokenizer_entry(tokenizer),
            request=self.request,
            one_thread=pooled(workers, total),
        )
        jobs = ((job,) for job in jobs_of(self.sources, cut, whole=not tokenizer.piecewise))
        with ExitStack() as files:
            writers = {
                name: files.enter_context(SplitWriter(folder, name, tokenizer.vocab_size, tokenizer.dtype))
                for name in dict.fromkeys(("train", "val", *self.sources))
                if name != "input"
            }
            chunks = in_order(worker, jobs, workers, total)
            for encoded in reported(chunks, lambda encoded: encoded.bytes, "encoding", total, self.say):
                writers[encoded.split].write(encoded.ids, encoded.ends, encoded.bytes, encoded.words)
            return {name: writer.finish() for name, writer in writers.items()}

    def _manifest(self, tokenizer: tokenizers.Tokenizer, splits: dict[str, dict[str, Any]], cut: Cut) -> dict[str, Any]:
        request, entry = self.request, tokenizer_entry(tokenizer)
        manifest = {
            "version": MANIFEST_VERSION,
            "hash": data_hash(entry, splits),
            "key": self.key,
            "form": request.form,
            "sources": [{"split": name, **asdict(d)} for name, ds in self.digests.items() for d in ds],
            "val_fraction": None if "val" in request.split_files else request.val_fraction,
            "continuous": cut.train_characters is not None,
            "detokenizer": "wikitext" if request.detokenize else None,
            "word_rule": FORMS[request.form].word_rule,
            "dtype": "uint16" if tokenizer.dtype.itemsize == 2 else "uint32",
            "tokenizer": entry,
            "splits": splits,
        }
        return {**manifest, "manifest_sha256": fingerprint(manifest)}
