"""A tokeniser and a text source of one's own: the commonest words, and one poem or verse for each blank line.

    grok prepare words.verses --input poems.txt --tokenizer words.Words --out data/poems
    grok run mode=gpt experiment=gpt/shakespeare_char data.path=data/poems data.tokenizer=words.Words

The corpus keeps the hash of this file. The same command leaves the corpus as it is, until this file changes.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

PIECES = re.compile(r"\w+|\s+|[^\w\s]")


def verses(name: str) -> Iterator[str]:
    """Yield the documents of one --input: the parts of a file between blank lines."""
    for part in re.split(r"\n\s*\n", Path(name).read_text(encoding="utf-8")):
        if part.strip():
            yield part.strip()


class Words:
    """Id 0 is any word but the commonest; id i is ``words[i - 1]``."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.vocab_size = len(self.words) + 1
        self.ids = {word: i for i, word in enumerate(self.words, 1)}

    @classmethod
    def fit(cls, texts: Iterable[str]) -> "Words":
        """Return the tokeniser of the 1,000 commonest words, blanks and marks of the train split."""
        counts = Counter(piece for text in texts for piece in PIECES.findall(text))
        return cls([word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:1000]])

    def state(self) -> list[str]:
        """Return what the corpus keeps, from which ``Words(state)`` is made again."""
        return self.words

    def encode(self, text: str) -> list[int]:
        return [self.ids.get(piece, 0) for piece in PIECES.findall(text)]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.words[i - 1] if i else "?" for i in ids)
