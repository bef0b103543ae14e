"""Contenders in processes of their own that take turns, and the pages of what was measured."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import platform
import resource
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch


def serve(pipe: Connection, build: Callable[..., Any], arguments: tuple[Any, ...], place: dict[str, str]) -> None:
    """Build a contender in this process, then call its methods by their names until its ``end``."""
    os.environ.update(place)
    contender = build(*arguments)
    pipe.send("ready")
    while True:
        method, count = pipe.recv()
        if method == "end":
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            pipe.send({"memory": memory, **contender.end()})
            return
        call = getattr(contender, method)
        began = time.perf_counter()
        for _ in range(count):
            call()
        pipe.send(time.perf_counter() - began)


class Contender:
    """A contender in one or more processes of its own, which work at the same time.

    ``build`` returns it in its process, from one element of ``arguments`` for each process: an object whose methods
    take no argument, with a method ``end`` that returns its last numbers. ``places``: environment of each process;
    processes that have one wait for each other while they start, so they start together.
    """

    def __init__(
        self,
        build: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        *,
        name: str = "",
        places: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self.name = name
        self.times: list[float] = []
        """Seconds per call, round by round."""
        self.last: list[dict[str, Any]] = []
        """Each process's last numbers: its memory in MiB and those of the contender's ``end``."""
        self.pipes: list[Connection] = []
        context = multiprocessing.get_context("spawn")
        for i, one in enumerate(arguments):
            own_end, other_end = context.Pipe()
            served = (other_end, build, one, dict(places[i]) if places else {})
            context.Process(target=serve, args=served, daemon=True).start()
            self.pipes.append(own_end)
            if not places:
                own_end.recv()  # one after the other: the first fills the compilation cache
        for pipe in self.pipes if places else ():
            pipe.recv()

    def run(self, count: int, method: str = "step") -> float:
        """Return the seconds per call of ``count`` calls, with all processes at work."""
        for pipe in self.pipes:
            pipe.send((method, count))
        return float(max(pipe.recv() for pipe in self.pipes) / count)

    def end(self) -> list[dict[str, Any]]:
        """Stop the processes; return and keep their last numbers."""
        for pipe in self.pipes:
            pipe.send(("end", 0))
        self.last = [pipe.recv() for pipe in self.pipes]
        return self.last


def commit() -> str:
    """Return the commit's short name, or ``unknown`` without git or a repository."""
    try:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def heading(title: str, *facts: str) -> list[str]:
    """Return the title of a page, and its line of date, commit, machine and versions."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return [
        f"# {title}",
        "",
        f"{datetime.date.today()}, commit {commit()}, {', '.join([*facts[:-1], versions])}. {facts[-1]}",
        "",
    ]


def table(head: Sequence[str], rows: Iterable[Sequence[object]], right: Iterable[int] = ()) -> list[str]:
    """Return a Markdown table, the columns ``right`` aligned to the right, and the empty line after it."""
    aligned = set(right)
    ruler = "|".join("--:" if i in aligned else "---" for i in range(len(head)))
    first, *rest = (f"| {' | '.join(map(str, line))} |" for line in (head, *rows))
    return [first, f"|{ruler}|", *rest, ""]


def write(out: Path | None, name: str, text: str, results: Any) -> None:
    """Print a page and write it, dated, with its numbers to the folder ``out`` (None: print alone)."""
    print(text)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        stem = out / f"{datetime.date.today()}-{name}"
        stem.with_suffix(".md").write_text(text, encoding="utf-8")
        stem.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
