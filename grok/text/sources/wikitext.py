"""WikiText: its articles, recognised by their headings, its word count, and its detokeniser.

Source: Merity et al. 2017, "Pointer Sentinel Mixture Models". The tokenised form has spaces
around punctuation, ``<unk>`` for rare words, and ``@-@``, ``@,@``, ``@.@`` for hyphens, commas and full stops inside
words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import Final

from grok.text.sources.pieces import Piece

_TITLE: Final = re.compile(r"^ ?= [^=].* = $|^ ?= [^=] = $")


def articles(*files: Iterable[str]) -> Iterator[Piece]:
    """Yield the articles in the lines of ``files``, which have their line ends; an article may go on in the next file.

    A title `` = Name = `` begins an article if the lines before and after it are blank (a formula
    may look like a title), or if it begins a file and the line after it is blank. The blank line
    before belongs to the article. Joined, the articles are the input.
    """
    article: list[str] = []
    numbered = chain.from_iterable(map(enumerate, files))
    for (number, line), (_, following) in pairwise(chain(numbered, [(0, "")])):
        previous = article[-1] if article and number else ""
        if _TITLE.match(line.rstrip("\r\n")) and not previous.strip() and not following.strip():
            blank = [article.pop()] if article and not article[-1].strip() else []
            if article:
                yield Piece("".join(article), True)
            article = blank
        article.append(line)
    if article:
        yield Piece("".join(article), True)


def lines_of(chunks: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a text that comes in chunks, each with its ``\\n``."""
    rest = ""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split("\n")
        for line in whole:
            yield line + "\n"
    if rest:
        yield rest


def lines_of_rows(rows: Iterable[str]) -> Iterator[str]:
    """Yield the lines of WikiText in table form, one per row; an empty row is a blank line, `` \\n``."""
    for row in rows:
        yield row if row.endswith("\n") else row + "\n" if row else " \n"


def word_count(text: str) -> int:
    """Return the number of WikiText words: those separated by white space, and one for each line end.

    >>> word_count(" a cat @-@ nap . \\n \\n")
    7
    """
    return len(text.split()) + text.count("\n")


_JOINED: Final = (
    (re.compile(r" @([-,.])@ "), r"\1"),
    (re.compile(r"(?<=\w) '(s|t|re|ve|ll|d|m)\b"), r"'\1"),
    (re.compile(r" ([;:.!?,])(?=\s)"), r"\1"),
    (re.compile(r"\( ([^\n()]*) \)"), r"(\1)"),
    (re.compile(r"\[ ([^\n\[\]]*) \]"), r"[\1]"),
    (re.compile(r"\" ([^\n\"]*) \""), r'"\1"'),
    (re.compile(r"(?m)^ (=(?: =)+) (.*) \1 $"), lambda m: f"{(mark := m[1].replace(' ', ''))} {m[2]} {mark}"),
    (re.compile(r"(?m)^ +| +$"), ""),
)


def detokenize(text: str) -> str:
    """Return tokenised WikiText as ordinary text: joined at ``@-@``, no spaces before stops or inside brackets.

    >>> detokenize(" He ( the well @-@ known one ) didn 't see 1 @,@ 000 cats . \\n = = Cats = = \\n")
    "He (the well-known one) didn't see 1,000 cats.\\n== Cats ==\\n"
    """
    for pattern, replacement in _JOINED:
        text = pattern.sub(replacement, text)
    return text
