"""A report as one self-contained, interactive HTML page. The page loads no other file."""

from analysis.page.assembly import render
from analysis.page.text import cell, with_terms

__all__ = ["cell", "render", "with_terms"]
