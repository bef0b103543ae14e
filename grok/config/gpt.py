"""Settings of the GPT mode."""

from __future__ import annotations

from dataclasses import dataclass

from grok.config.common import RunConfig


@dataclass(kw_only=True)
class GptConfig(RunConfig):
    """A GPT on text."""
