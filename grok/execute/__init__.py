"""Executes a plan of runs: lane groups, executors, retries, progress. Knows nothing of Hydra."""

from grok.execute.plan import Designed
from grok.execute.sweep import Outcome, execute

__all__ = ["Designed", "Outcome", "execute"]
