"""A read that fails for an outside reason proves nothing: no shard is moved, and the command says so in one line."""

import builtins
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grok.commands.store import main
from grok.errors import StoreError
from grok.store import StoreWriter, open_store
from grok.store.contract import example_rows
from grok.store.upkeep import compact


def shards(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for kind in ("runs", "curves") for p in (store / kind).iterdir()}


@contextmanager
def refusing(monkeypatch: pytest.MonkeyPatch, victim: Path, number: int, times: int) -> Iterator[None]:
    """Let the first ``times`` openings of ``victim`` fail as the system would, by Python and by Arrow."""
    left = {"times": times}
    real_open, real_file = os.open, pq.ParquetFile

    def failing(name: object) -> None:
        if isinstance(name, (str, Path)) and str(name) == str(victim) and left["times"] > 0:
            left["times"] -= 1
            raise OSError(number, os.strerror(number), str(victim))

    def open_(path: object, *args: object, **more: object) -> int:
        failing(path)
        return real_open(path, *args, **more)  # type: ignore[arg-type]

    def parquet(path: object, *args: object, **more: object) -> pq.ParquetFile:
        failing(path)
        return real_file(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_)
        patch.setattr(pq, "ParquetFile", parquet)
        yield


USES: tuple[Callable[[Path], object], ...] = (
    StoreWriter,
    compact,
    lambda path: StoreWriter(path, thorough=False).commit(example_rows(range(6, 8))),
)
REASONS = [
    errno.EIO, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOLINK, errno.ELOOP, errno.ENXIO, errno.EBUSY, errno.ESTALE,
    errno.EACCES, errno.EMFILE, errno.ENOMEM, errno.ETIMEDOUT, errno.EAGAIN, errno.EINVAL,
]  # fmt: skip


@pytest.mark.parametrize("kind", ["runs", "curves"])
def test_no_error_of_the_system_moves_a_shard(store: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    before, victim = shards(store), sorted((store / kind).iterdir())[0]
    cases = [(StoreWriter, number, 99) for number in REASONS]
    cases += [(use, errno.EIO, times) for use in USES for times in (1, 2, 99)]
    for use, number, times in cases:
        with refusing(monkeypatch, victim, number, times), pytest.raises(StoreError) as refused:
            use(store)
            raise StoreError("read after all")  # a look that was not needed
        assert "\n" not in str(refused.value)
    assert shards(store).items() >= before.items()
    assert not list((store / "quarantine").iterdir())
    with StoreWriter(store) as writer:
        assert writer.recovered == []


def test_an_error_of_arrows_own_about_sound_bytes_moves_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no thread can be had: an ArrowException that once passed for damage."""
    before = shards(store)

    def fail(*args: object, **more: object) -> None:
        raise pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetFile, "read", fail)
        with pytest.raises(StoreError, match="its bytes are whole, so nothing was changed"):
            StoreWriter(store)
    assert shards(store) == before


def test_bytes_that_change_between_two_looks_prove_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = sorted((store / "runs").iterdir())[0]
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2])
    real, looks = builtins.open, []

    def open_(file: object, *args: object, **more: object) -> object:
        opened = real(file, *args, **more)  # type: ignore[call-overload]
        if isinstance(file, int) and Path(f"/proc/self/fd/{file}").readlink() == victim:
            looks.append(file)
            victim.write_bytes(whole if len(looks) > 2 else whole[: len(whole) // 2])
        return opened

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", open_)
        with pytest.raises(StoreError, match="nothing was changed"):
            StoreWriter(store)
    assert victim.read_bytes() == whole
    assert open_store(store).run_ids() == {row.result.run_id for row in example_rows(range(6))}


IN_NEED = """
import os, resource, sys
import pandas, pyarrow.dataset
from grok.commands.store import main
os.getuid() == 0 and os.setuid(65534)
what, limit = sys.argv[1], int(sys.argv[2])
if limit >= 0:
    resource.setrlimit(getattr(resource, what), (limit, limit))
sys.exit(main(sys.argv[3:]))
"""


@pytest.fixture
def open_folder(store: Path) -> Iterator[Path]:
    """Return a folder that any user may enter, with a copy of ``store``.

    Pytest's own folders are closed to others, and every session of pytest that starts closes them again.
    """
    folder = Path(tempfile.mkdtemp())
    shutil.copytree(store, folder / "store")
    subprocess.run(["chmod", "-R", "a+rwX", str(folder)], check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("command", ["compact", pytest.param("merge", marks=pytest.mark.slow)])
def test_a_process_that_may_have_no_thread(open_folder: Path, command: str) -> None:
    """Reading with Arrow's threads hung for ever, and what came before had moved every shard."""
    store = open_folder / "store"
    before = shards(store)
    words = [command, str(store), *([str(store), "--into", str(open_folder / "new")] if command == "merge" else [])]
    done = subprocess.run(
        [sys.executable, "-c", IN_NEED, "RLIMIT_NPROC", "0", *words], capture_output=True, text=True, timeout=100,
        check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "refuses threads" in done.stderr, done.stderr
    assert shards(store) == before and not list((store / "quarantine").iterdir())


@pytest.mark.parametrize("command", ["compact", "verify", "status"])
def test_a_store_whose_path_is_not_utf_8(store: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight rows once became none, with exit status 0."""
    odd = Path(os.fsdecode(os.fsencode(str(store)) + b"\xff"))
    try:
        store.rename(odd)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    before = shards(odd)
    assert main([command, str(odd)]) == 2
    said = capsys.readouterr()
    assert "not UTF-8" in said.err and said.err.count("\n") == 1
    assert shards(odd) == before
