"""Nothing that comes from a disk or a setting is executed, and no port is opened: read off the code itself."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for folder in ("grok", "hydra_plugins", "sweeps", "analysis") for path in (ROOT / folder).rglob("*.py")
)

UNPICKLING = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib.load"}
EXECUTING = {"eval", "exec", "compile", "__import__"}
LISTENING = {"socketserver", "http.server", "xmlrpc", "asyncio", "multiprocessing.connection"}
LOADING = {("torch", "load"), ("joblib", "load"), ("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load")}


parsed = functools.cache(ast.parse)


def found(code: str) -> Iterator[str]:
    """Yield what ``code`` does that could execute what it reads."""
    for node in ast.walk(parsed(code)):
        if isinstance(node, ast.Import):
            yield from (f"imports {a.name}" for a in node.names if a.name.partition(".")[0] in UNPICKLING)
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "", a.name) for a in node.names}
            if (node.module or "").partition(".")[0] in UNPICKLING or names & LOADING:
                yield f"imports from {node.module}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in EXECUTING:
            yield f"calls {node.func.id}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and (owner.id, node.func.attr) in LOADING:
                yield f"calls {owner.id}.{node.func.attr}"
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield "allows pickle"


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from dill import load",
        "eval('1')",
        "exec(x)",
        "torch.load(f)",
        "np.load(f, allow_pickle=True)",
    ],
)
def test_the_search_finds_it(code: str) -> None:
    assert list(found(code))


def test_nothing_does() -> None:
    assert len(FILES) > 100
    assert {str(p.relative_to(ROOT)): doing for p in FILES if (doing := list(found(p.read_text())))} == {}


def listening(code: str) -> Iterator[str]:
    """Yield what ``code`` does that could wait for somebody to connect."""
    for node in ast.walk(parsed(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            yield from (f"imports {name}" for name in names if name in LISTENING)
        elif isinstance(node, ast.Attribute) and node.attr in ("bind", "listen", "accept", "create_server"):
            yield f"uses {ast.unparse(node)}"


def test_no_port_is_opened() -> None:
    """``torchrun``, Dask and Ray have theirs, and ``grok report --serve`` for this machine alone: ``SECURITY.md``."""
    assert (
        list(listening("import socketserver")) and list(listening("s.bind(('', 0))")) and list(listening("s.listen()"))
    )
    assert {str(p.relative_to(ROOT)): doing for p in FILES if (doing := list(listening(p.read_text())))} == {
        "analysis/report.py": ["imports http.server"]
    }
    assert 'ThreadingHTTPServer(("127.0.0.1"' in (ROOT / "analysis/report.py").read_text()
