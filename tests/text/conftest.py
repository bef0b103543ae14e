"""Small corpora of this project's own, and the published samples where they are at hand."""

import pytest

from grok.text.corpus import Corpus
from grok.text.preparation import Request, prepare


@pytest.fixture(scope="session")
def fables(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A character corpus of 200 fables."""
    out = tmp_path_factory.mktemp("corpora") / "fables"
    return prepare(Request(form="fables", inputs=("200:0",), out=out, tokenizer="char"))[0]


ARTICLES = (
    " \n = Moss = \n \n Moss is a small @-@ leaved plant . It grows to 1 @,@ 5 cm . \n"
    " = 3 <unk> / s is no title = \n It has no roots . \n \n = = Uses = = \n \n People put it under <unk> . \n \n"
    " = The ( odd ) Owl = \n \n An owl 's call carries far . It isn 't loud . \n"
)
"""Two articles in WikiText's tokenised form; a formula in the first looks like a title."""
