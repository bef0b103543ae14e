"""Where text comes from: files of every form that the corpora are published in, read as documents, in a fixed order.

A source yields :class:`~grok.text.sources.pieces.Piece`: a document, or the next part of
a long one, so that memory stays bounded whatever the size of the text. The order is that of the
inputs as given, of the names inside a folder, and of the rows inside a file.
"""

from grok.text.sources.forms import FORMS, Source, form_of, open_source
from grok.text.sources.pieces import Piece

__all__ = ["FORMS", "Piece", "Source", "form_of", "open_source"]
