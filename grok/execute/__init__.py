"""Executes a plan of runs: lane groups, executors, retries, progress. Knows nothing of Hydra."""

from grok.execute.sweep import Outcome, execute

__all__ = ["Outcome", "execute"]
