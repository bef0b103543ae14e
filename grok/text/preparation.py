"""Prepares a corpus folder from text: scan, tokenise, report, and one rename of the finished folder.

The text is read twice: once to count and hash it and to measure its quality, once to encode it. A new
BPE reads the train split in between. Worker processes handle it in chunks, so memory does not grow
with the text. An existing corpus of the same bytes, tokeniser and options is not made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from grok.errors import DataError
from grok.files import clear_unfinished, disk_errors, staged_folder
from grok.plugins import active, fingerprints, load
from grok.text import inspection
from grok.text.corpus import MANIFEST_VERSION, Corpus, data_hash, fingerprint, open_corpus, tokenizer_entry
from grok.text.encoding import encode
from grok.text.inspection import TextScan
from grok.text.own_tokenizer import OwnTokenizer, is_import_path
from grok.text.parallel import Say, Throughput, in_order
from grok.text.saved_tokenizer import load_tokenizer
from grok.text.sources import Piece, Source, form_of, open_source
from grok.text.sources.files import InputDigest
from grok.text.sources.pieces import is_blank, without_blank_documents
from grok.text.sources.wikitext import detokenize
from grok.text.splitting import Cut, Job, chunks_of, jobs_of
from grok.text.tokenizers import (
    END_OF_TEXT,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
    gpt2_tokenizer,
    train_bpe,
)
from grok.untrusted import read_json

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
    """``char``, ``byte``, ``bpe``, ``gpt2``, the path of a ``tokenizer.json``, or MODULE.NAME of the user's own."""
    split_files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Inputs of the splits ``val`` and ``test`` that have their own; by default val is the last part of the input."""
    val_fraction: float = 0.1
    vocab_size: int = 8192
    vocab: Path | None = None
    eot: str = END_OF_TEXT
    text_field: str | None = None
    detokenize: bool = False
    workers: int = 1


def prepare(request: Request, say: Say = lambda line: None) -> tuple[Corpus, bool]:
    """Return the prepared corpus, and whether it existed already.

    Raises:
        DataError: an input, a tokeniser or an option cannot be used; nothing was changed.
    """
    _check(request)
    sources = {"input": open_source(request.form, request.inputs, request.text_field)}
    sources |= {
        name: open_source(request.form, inputs, request.text_field) for name, inputs in request.split_files.items()
    }
    given_tokenizer = _given_tokenizer(request)
    digests = {name: source.digests(request.workers) for name, source in sources.items()}
    key = _key(request, digests, given_tokenizer, {name: source.reading() for name, source in sources.items()})
    if (existing := _existing(request.out, key, _own_code(request).get("own_code", {}), say)) is not None:
        return existing, True
    if request.out.exists():
        _refuse_foreign(request.out)

    sizes = {name: sum(d.bytes for d in ds) for name, ds in digests.items()}
    with _workplace(request.out) as folder:
        scans = {name: _scan(name, source, request.workers, sizes[name], say) for name, source in sources.items()}
        cut = Cut.of(scans, request.val_fraction)
        tokenizer = given_tokenizer or _new_tokenizer(request, scans, jobs_of(sources, cut), say)
        (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        splits = encode(
            folder,
            tokenizer,
            sources,
            cut,
            workers=request.workers,
            total=sum(sizes.values()),
            say=say,
            form=request.form,
            written_apart=request.detokenize,
        )
        manifest = _manifest(request, key, digests, tokenizer, splits, cut)
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        content = inspection.report(open_corpus(folder), scans, cut.leaks(scans))
        (folder / "corpus.json").write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
        (folder / "corpus.md").write_text(inspection.to_markdown(content, request.out.name), encoding="utf-8")
    return open_corpus(request.out), False


def _check(request: Request) -> None:
    if not 0 <= request.val_fraction < 1:
        raise DataError(f"--val-fraction {request.val_fraction}: expected a number in [0, 1)")
    if request.val_fraction == 0 and "val" not in request.split_files:
        raise DataError("--val-fraction 0 leaves no validation split: give --split-file val=FILE, or a fraction")
    if request.tokenizer == "bpe" and not 257 <= request.vocab_size <= LARGEST_VOCABULARY:
        raise DataError(
            f"--vocab-size {request.vocab_size}: a byte-level BPE needs at least 257 (256 bytes and {END_OF_TEXT}) "
            f"and at most {LARGEST_VOCABULARY:,}"
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
    foreign = sorted(names if "manifest.json" not in names else names - _OWN_FILES)
    if "manifest.json" in names and not _may_be_manifest(out / "manifest.json"):
        foreign.append("manifest.json")
    if foreign:
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


def _given_tokenizer(request: Request) -> Tokenizer | None:
    """Return the tokeniser if it does not depend on the text, or None if it must be fitted."""
    if request.tokenizer in ("char", "bpe") or is_import_path(request.tokenizer):
        return None
    if request.tokenizer == "byte":
        return ByteTokenizer()
    if request.tokenizer == "gpt2":
        return gpt2_tokenizer(request.vocab)
    if not Path(request.tokenizer).is_file():
        raise DataError(
            f"--tokenizer {request.tokenizer}: expected char, byte, bpe, gpt2, a tokenizer.json that exists, or "
            "MODULE.NAME of your own"
        )
    tokenizer = load_tokenizer(Path(request.tokenizer), eot=request.eot)
    if isinstance(tokenizer, OwnTokenizer):
        tokenizer.refuse_unnamed()
    return tokenizer


def _key(
    request: Request,
    digests: dict[str, list[InputDigest]],
    tokenizer: Tokenizer | None,
    readings: Mapping[str, Mapping[str, Any]],
) -> str:
    """Return the hash of everything that decides the tokens: source bytes, tokeniser and options, no path."""
    eot = tokenizer_entry(tokenizer)["eot"] if tokenizer else END_OF_TEXT
    made = f"bpe:{request.vocab_size}" if request.tokenizer == "bpe" else request.tokenizer
    content = {
        "version": PREPARATION_VERSION,
        "form": request.form,
        "text_field": request.text_field,
        "sources": {name: [d.sha256 for d in ds] for name, ds in digests.items()},
        "tokenizer": tokenizer.hash if tokenizer else made,
        "val_fraction": request.val_fraction,
        "detokenize": request.detokenize,
        # only where they are not the usual ones, so that corpora from before these fields stay
        **({"eot": eot} if eot != END_OF_TEXT else {}),
        **({"reading": readings} if any(readings.values()) else {}),
        **_own_code(request),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _own_code(request: Request) -> dict[str, Any]:
    """Return the fingerprints of the user's own code that reads the text or makes the ids; empty without such code.

    Raises:
        ConfigError: the command does not name that code.
    """
    named = [name for name in (request.form, request.tokenizer) if is_import_path(name)]
    for name in named:
        load(name)
    return {"own_code": fingerprints(active(), named)} if named else {}


def _existing(out: Path, key: str, own: Mapping[str, str], say: Say) -> Corpus | None:
    """Return the corpus at ``out`` if it has this key and its bytes are right, else None."""
    if not (out / "manifest.json").is_file():
        return None
    try:
        corpus = open_corpus(out)
        if corpus.manifest["key"] != key:
            say(f"rebuilding {out}: {_what_changed(corpus.manifest, own)}")
            return None
        corpus.verify()
    except DataError as error:
        say(f"rebuilding: {error}")
        return None
    return corpus


def _what_changed(manifest: Mapping[str, Any], own: Mapping[str, str]) -> str:
    """Return why a corpus must be made again; ``own`` has the fingerprints of the code that the command names."""
    before = manifest.get("own_code") or {}
    changed = [f"{name} ({before[name]}, now {code})" for name, code in own.items() if before.get(name, code) != code]
    if changed:
        return f"code of your own has changed: {', '.join(changed)}"
    return "its source, tokeniser or options have changed"


def _scan(name: str, source: Source, workers: int, total: int, say: Say) -> TextScan:
    scan = TextScan()

    def counted() -> Iterator[Piece]:
        begins = True
        for piece in source.pieces():
            if is_blank(piece, begins):
                scan.blank_documents += 1
            else:
                scan.quality.read(piece.text, begins=begins)
            begins = piece.ends_document
            yield piece

    progress = Throughput(f"reading {name}", total, say)
    jobs = ((job.texts, job.ends) for job in chunks_of(name, without_blank_documents(counted())))
    for chunk in in_order(inspection.scan_chunk, jobs, workers, total):
        scan.add(chunk)
        progress.add(int(chunk.sizes.sum()))
    scan.quality.finish()
    progress.finish()
    return scan


def _new_tokenizer(request: Request, scans: dict[str, TextScan], jobs: Iterator[Job], say: Say) -> Tokenizer:
    if request.tokenizer == "char":
        several = any(scan.documents > 1 for scan in scans.values())
        codes = sorted({code for scan in scans.values() for code in scan.character_counts})
        return CharTokenizer([chr(code) for code in codes], end_of_text=several)

    def texts() -> Iterator[str]:
        left = BPE_CHARACTERS
        for job in jobs:
            if job.split != "train" or left <= 0:
                return
            for text in job.texts:
                left -= len(text)
                yield detokenize(text) if request.detokenize else text

    if is_import_path(request.tokenizer):
        say(f"fitting {request.tokenizer} to the train split")
        return OwnTokenizer.fit(request.tokenizer, texts())
    say(f"fitting a BPE of {request.vocab_size:,} ids to the train split")
    tokenizer = train_bpe(texts(), request.vocab_size)
    if tokenizer.vocab_size < request.vocab_size:
        say(f"the text is too small for {request.vocab_size:,} ids: the BPE has {tokenizer.vocab_size:,}")
    return tokenizer


def _manifest(
    request: Request,
    key: str,
    digests: dict[str, list[InputDigest]],
    tokenizer: Tokenizer,
    splits: dict[str, dict[str, Any]],
    cut: Cut,
) -> dict[str, Any]:
    entry = tokenizer_entry(tokenizer)
    manifest = {
        "version": MANIFEST_VERSION,
        "hash": data_hash(entry, splits),
        "key": key,
        "form": request.form,
        "sources": [{"split": name, **asdict(d)} for name, ds in digests.items() for d in ds],
        "val_fraction": None if "val" in request.split_files else request.val_fraction,
        "continuous": cut.train_characters is not None,
        "detokenizer": "wikitext" if request.detokenize else None,
        "word_rule": form_of(request.form).word_rule,
        "dtype": "uint16" if tokenizer.dtype.itemsize == 2 else "uint32",
        "tokenizer": entry,
        "splits": splits,
        **_own_code(request),
    }
    return {**manifest, "manifest_sha256": fingerprint(manifest)}


@contextmanager
def _workplace(out: Path) -> Iterator[Path]:
    """Yield a new folder beside ``out``, renamed to ``out`` at the end; remove those of killed commands first."""
    # only errors of the output disk arrive here: readers of inputs raise DataError themselves
    with disk_errors(f"--out {out} cannot be written", DataError, "the existing files are unchanged"):
        out.parent.mkdir(parents=True, exist_ok=True)
        clear_unfinished(out.parent, out)
        with staged_folder(out) as folder:
            yield folder
