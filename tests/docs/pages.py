"""The pages that people read, and the commands, links and Python in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs import generate
from grok.__main__ import COMMANDS as CONSOLE

ROOT = Path(__file__).parents[2]
GENERATED = {generate.FOLDER / name: make for name, make in generate.PAGES.items()}
"""Pages that are not in git: what makes them."""
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "sweeps/README.md",
    *sorted({*(ROOT / "docs").rglob("*.md"), *GENERATED}),
]
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<kind>\w*)\n(?P<body>.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    page: str
    kind: str
    body: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command line of a page."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words[:7])}"


def text_of(page: Path) -> str:
    """Return the Markdown of ``page``."""
    return GENERATED[page]() if page in GENERATED else page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of ``page``."""
    name = str(page.relative_to(ROOT))
    text = text_of(page)
    return [Block(name, m["kind"], re.sub(f"^{m['indent']}", "", m["body"], flags=re.M)) for m in FENCE.finditer(text)]


def commands(page: Path) -> Iterator[Command]:
    """Yield every ``python -m``, ``grok`` and ``make`` command of ``page``: in blocks, and in `single quotes`."""
    for block in blocks(page):
        yield from commands_of(block)
    text = FENCE.sub("", text_of(page))
    for quoted in re.findall(r"`([^`\n]+)`", text):
        yield from _command(str(page.relative_to(ROOT)), quoted.replace("\\|", "|"))


def commands_of(block: Block) -> Iterator[Command]:
    """Yield the commands of one block."""
    if block.kind in ("", "sh", "bash"):
        for line in block.body.replace("\\\n", " ").splitlines():
            yield from _command(block.page, line)


def _command(page: str, line: str) -> Iterator[Command]:
    line = re.sub(r"(?<!\S)#.*", "", line).strip().removeprefix("$ ")
    line = re.sub(r"^(?:[A-Z_]+=\S+ )+", "", line)  # environment variables in front
    line = re.sub(r"^grok (\S+)", lambda match: _as_module(match[1]) or match[0], line)
    if re.match(r"(python3? -m (grok|analysis|sweeps|benchmarks|docs|tests)|make \w)", line) and "..." not in line:
        yield Command(page, tuple(shlex.split(line)))


def _as_module(name: str) -> str | None:
    """Return ``python -m MODULE`` for a command of ``grok``, with the words that it puts first."""
    entry = {name: entry for group in CONSOLE.values() for name, entry in group.items()}.get(name)
    if entry is None or entry.module == "grok.__main__":
        return None
    module = "grok.store" if entry.module == "grok.commands.store" else entry.module.removesuffix(".__main__")
    return " ".join(["python -m", module, *entry.words])


def links(page: Path) -> list[str]:
    """Return the targets of the relative links and images of ``page``."""
    text = FENCE.sub("", text_of(page))
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text))
    return [target for target in targets if "://" not in target and not target.startswith("#")]
