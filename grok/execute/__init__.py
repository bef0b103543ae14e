"""Carries out what was asked for: plan, lane groups, executors, retry, progress. Knows nothing of Hydra."""

from grok.execute.sweep import Outcome, execute

__all__ = ["Outcome", "execute"]
