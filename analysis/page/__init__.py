"""From a report to one self-contained HTML page that answers to the pointer. Nothing is loaded from anywhere."""

from analysis.page.assembly import render
from analysis.page.text import cell, with_terms

__all__ = ["cell", "render", "with_terms"]
