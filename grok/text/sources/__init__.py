"""Reads text as documents in a fixed order, from every form in which the corpora are published.

A source yields :class:`~grok.text.sources.documents.Piece`: a document, or the next part of
a long one, so that memory does not grow with the text. The order is that of the inputs, then
of the names in a folder, then of the rows in a file.
"""

from grok.text.sources.documents import Piece
from grok.text.sources.forms import FORMS, Source

__all__ = ["FORMS", "Piece", "Source"]
