"""The texts of one run, opened and verified: its training texts and its validation texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from grok.config.gpt import GptConfig
from grok.errors import ConfigError, DataError
from grok.text.corpus import Corpus, open_corpus, refuse_other_tokenizer
from grok.text.mixture import HASH_DIGITS, set_hash, shares_by_hash

TRAINED_ON: Final = ("train", "val")
"""The splits that a run reads of its main corpus."""
_VERIFIED: Final[set[tuple[Any, ...]]] = set()
"""Token files that this process has read and verified."""
_AGAIN: Final = "give the command again"


@dataclass(frozen=True, slots=True)
class Source:
    """One corpus of the training set."""

    corpus: Corpus
    share: float
    """Its share of the training sequences."""


@dataclass(frozen=True, slots=True)
class Texts:
    """All corpora that a run reads."""

    corpus: Corpus
    """The corpus of ``data.path``, with the tokeniser and the main validation set."""
    sources: tuple[Source, ...]
    """The training corpora, ordered by their hashes."""
    validation: Mapping[str, tuple[Corpus, str]] = field(default_factory=dict)
    """Further validation sets by name: corpus and split."""

    @classmethod
    def of(cls, corpus: Corpus) -> Texts:
        """Return the texts of a run with ``corpus`` as training and validation set."""
        return cls(corpus, (Source(corpus, 1.0),))

    def refuse_changed(self) -> None:
        """Refuse to continue with tokens that were overwritten in place.

        Raises:
            DataError: the tokens of a split that the run reads are no longer those of the manifest.
        """
        for corpus, splits in self.read():
            corpus.refuse_changed(splits)

    def verify(self) -> None:
        """Read all tokens, once per process, and compare them with the manifests.

        Raises:
            DataError: a file was changed after it was written.
        """
        for corpus, splits in self.read():
            files = (corpus.hash, *splits, *corpus.stamps(splits))
            if files not in _VERIFIED:  # a process may train many runs on one corpus
                corpus.verify(splits)
                _VERIFIED.add(files)

    def read(self) -> list[tuple[Corpus, tuple[str, ...]]]:
        """Return each corpus with the splits that the run reads."""
        others = [source.corpus for source in self.sources if source.corpus is not self.corpus]
        further = [(corpus, (split,)) for corpus, split in self.validation.values()]
        return [(self.corpus, TRAINED_ON), *((corpus, ("train",)) for corpus in others), *further]


def open_data(config: GptConfig) -> Texts:
    """Return the texts that ``config`` names, after comparing all their tokens with the manifests.

    The manifests' hashes are part of the ``run_id``, so a run must not train on other tokens.

    Raises:
        ConfigError: no path is given.
        DataError: a corpus is missing or damaged, has another tokeniser, or does not have the hash in the ``run_id``.
    """
    data = config.data
    if data.path is None:
        raise ConfigError(
            "data.path is not given: a folder that `grok prepare text --input FILE --tokenizer char --out DIR` wrote"
        )
    main = open_corpus(data.path)
    corpora = {name: main if folder == data.path else open_corpus(folder) for name, folder in data.folders().items()}
    for corpus in corpora.values():
        refuse_other_tokenizer(corpus, main)
    sources: tuple[Source, ...] = (Source(main, 1.0),)
    if data.mixture:
        shares = shares_by_hash(data.mixture, {name: corpora[name].hash for name in data.mixture})
        by_hash = {corpora[name].hash[:HASH_DIGITS]: corpora[name] for name in data.mixture}
        by_hash[main.hash[:HASH_DIGITS]] = main
        if data.mixture_hashes not in ({}, shares):
            raise DataError("a corpus of data.mixture is not the one that this run was named after: " + _AGAIN)
        sources = tuple(Source(by_hash[short], share) for short, share in shares.items())
    validation = {entry: (corpora[name], split) for entry, (name, split) in data.validation_sets().items()}
    for entry, (corpus, split) in validation.items():
        now = set_hash(corpus.manifest, split)
        if data.validation_hashes.get(entry, now) != now:
            raise DataError(f"data.validation: {entry} is not the corpus that this run was named after: " + _AGAIN)
    texts = Texts(main, sources, validation)
    texts.verify()
    return texts
