"""The measured commit."""

from __future__ import annotations

import subprocess


def commit() -> str:
    """Return the commit's short name, or ``unknown`` without git or a repository."""
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
