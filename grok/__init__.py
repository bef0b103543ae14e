"""A laboratory for one question: what does a seed decide?"""

__version__ = "0.1.0"
