"""Your own tokeniser and text source: the most frequent words, and documents separated by blank lines.

    grok prepare words.verses --input poems.txt --tokenizer words.Words --out data/poems
    grok run mode=gpt experiment=gpt/shakespeare_char data.path=data/poems data.tokenizer=words.Words

The corpus has the hash of this file. If you repeat the command, the corpus stays unless this file has changed.
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
    """Id 0 is any unknown word; id i is ``words[i - 1]``."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.vocab_size = len(self.words) + 1
        self.ids = {word: i for i, word in enumerate(self.words, 1)}

    @classmethod
    def fit(cls, texts: Iterable[str]) -> "Words":
        """Return the tokeniser of the 1,000 most frequent words, blanks and marks of the train split."""
        counts = Counter(piece for text in texts for piece in PIECES.findall(text))
        return cls([word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:1000]])

    def state(self) -> list[str]:
        """Return the state that the corpus stores; ``Words(state)`` restores the tokeniser."""
        return self.words

    def encode(self, text: str) -> list[int]:
        return [self.ids.get(piece, 0) for piece in PIECES.findall(text)]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.words[i - 1] if i else "?" for i in ids)
