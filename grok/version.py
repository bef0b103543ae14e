"""The version of this project, alone: the build reads it, and importing it imports nothing."""

__version__ = "0.1.0"
