"""Your own log: a file of JSON lines for each run.

    grok sweep log.plugin._target_=json_lines.JsonLines log.plugin.folder=lines 'seed=range(0,8)' experiment=quickstart

The first line has the run's settings, seeds and outcome. Each further line has one evaluation. The last line has the
status.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grok.records import RunResult


class JsonLines:
    """One run's file, ``folder/RUN_ID.jsonl``."""

    def __init__(self, run_id: str, settings: Mapping[str, Any], folder: str = "lines") -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.file = Path(folder, f"{run_id}.jsonl").open("w", encoding="utf-8")  # noqa: SIM115 (close() does)
        self.put(dict(settings))

    def put(self, record: dict[str, Any]) -> None:
        self.file.write(json.dumps(record, default=str) + "\n")

    def write(self, values: dict[str, float], step: int) -> None:
        self.put({"step": step, **values})

    def finish(self, result: RunResult) -> None:
        self.put({"status": result.status, "stop_reason": result.stop_reason})

    def close(self) -> None:
        self.file.close()
