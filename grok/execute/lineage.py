"""The code that trained a run: a resumed run may have begun under other code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from grok.records import Checkpoint, Job
from grok.store import Provenance

KEY = "code"
"""Where a checkpoint's state holds it: ``{"commits": [...], "dirty": bool | None}``."""
UNKNOWN = "unknown"


class Lineage:
    """The commits that the runs of one group were trained under, oldest first, the present one last."""

    def __init__(self, provenance: Provenance, jobs: Sequence[Job]) -> None:
        """``jobs``: the runs, with the checkpoints that they go on from."""
        self.present = provenance
        self._before: dict[str, tuple[list[str], bool | None]] = {}
        for job in jobs:
            if job.resume is not None and KEY in job.resume.state:
                code = job.resume.state[KEY]
                self._before[job.run_id] = (code["commits"], code["dirty"])

    def of(self, run_id: str) -> Provenance:
        """Return the provenance of ``run_id``: all its commits in one text, dirty where any part was."""
        commits, dirty = self._code(run_id)
        if commits == [UNKNOWN]:
            return self.present
        return replace(self.present, git_commit=" | ".join(commits), git_dirty=dirty)

    def marked(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return ``checkpoint`` with the code that trained up to it."""
        commits, dirty = self._code(checkpoint.run_id)
        return replace(checkpoint, state={**checkpoint.state, KEY: {"commits": commits, "dirty": dirty}})

    def _code(self, run_id: str) -> tuple[list[str], bool | None]:
        before, was_dirty = self._before.get(run_id, ([], False))
        now = self.present.git_dirty
        dirty = True if now or was_dirty else None if now is None or was_dirty is None else False
        return list(dict.fromkeys([*before, self.present.git_commit or UNKNOWN])), dirty
