"""The data set of all committed stores, in four readers."""

import hashlib
import runpy
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars
import pytest
import torch

from grok import run
from grok.analysis import atlas
from grok.analysis.atlas import build, main, split_name
from grok.runs import weights_hash
from grok.store import open_store
from tests.analysis.simulate import census, write

STORES = sorted(path for path in Path(__file__).parents[2].glob("results/*/store"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("atlas") / "atlas"
    build(out, STORES)
    return out


@pytest.mark.parametrize("kind", atlas.KINDS)
def test_every_reader_gets_every_row_of_the_stores(built: Path, kind: str) -> None:
    expected = {split_name(store): getattr(open_store(store), kind)()["run_id"] for store in STORES}
    for split, run_ids in expected.items():
        pd.testing.assert_series_equal(pd.read_parquet(built / kind / f"{split}.parquet")["run_id"], run_ids)
    counts = [
        len(polars.read_parquet(built / kind / "*.parquet")),
        len(duckdb.sql(f"select * from '{built}/{kind}/*.parquet'")),
    ]
    assert counts == [sum(map(len, expected.values()))] * 2


@pytest.mark.slow
def test_datasets_loads_each_split(built: Path, tmp_path: Path) -> None:
    code = "import datasets, sys\nfor kind in ('runs', 'curves', 'designs'):\n"
    code += "    print(kind, *[f'{n}={len(s)}' for n, s in datasets.load_dataset(sys.argv[1], kind).items()])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(built)], env={"HF_HOME": str(tmp_path), "HF_DATASETS_OFFLINE": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        kind, *splits = line.split()
        assert splits == [f"{split_name(s)}={len(getattr(open_store(s), kind)())}" for s in STORES]
    assert len(done.stdout.splitlines()) == 3


def test_sums_name_every_file(built: Path) -> None:
    lines = dict(line.split("  ")[::-1] for line in (built / "SHA256SUMS").read_text().splitlines())
    files = {str(path.relative_to(built)) for path in built.rglob("*") if path.is_file()} - {"SHA256SUMS"}
    assert lines.keys() == files
    assert all(hashlib.sha256((built / name).read_bytes()).hexdigest() == digest for name, digest in lines.items())
    assert sum(path.stat().st_size for path in built.rglob("*") if path.is_file()) < 100e6


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the table of runs of a data set of one run with kept weights, and its run_id."""
    folder = tmp_path_factory.mktemp("kept")
    small = ["experiment=nanda", "task.modulus=7", "model.d_model=8", "model.d_ff=16", "train.batch_size=14"]
    words = ["train.steps=60", "eval.every=20", "save=init,final", "checkpoint.keep_steps=[20]", "executor=inline"]
    assert run.main([*small, *words, f"store.path={folder / 'S'}", "numerics.compile=false"]) == 0
    build(folder / "atlas", [folder / "S"])
    (run_id,) = open_store(folder / "S").run_ids()
    return folder / "atlas/runs/S.parquet", run_id


LENS = runpy.run_path(str(Path(__file__).parents[2] / "examples/lens.py"))


def test_kept_weights_open_as_the_readable_model(kept: tuple[Path, str]) -> None:
    stored = pd.read_parquet(kept[0]).set_index("run_id").loc[kept[1]]
    models = {moment: LENS["readable"](*kept, moment) for moment in ("init", "20", "final")}
    hashes = {moment: weights_hash(dict(model.named_parameters())) for moment, model in models.items()}
    assert hashes["final"] == stored["weights_hash"] and len(set(hashes.values())) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TransformerLens's own class
def test_a_kept_model_has_equal_logits_in_transformer_lens(kept: tuple[Path, str]) -> None:
    pytest.importorskip("transformer_lens", reason="pip install 'grok-lab[lens]'")
    tokens = torch.tensor([[a, b, 7] for a in range(7) for b in range(7)])
    mine = LENS["readable"](*kept, "final")
    with torch.no_grad():
        torch.testing.assert_close(LENS["hooked"](mine)(tokens), mine(tokens))


def test_stores_of_one_name_and_a_full_folder_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "S"
    write(census(4, np.random.default_rng(0)), store)
    assert main(["build", str(tmp_path / "out"), str(store), str(store)]) == 2
    assert main(["build", str(tmp_path), str(store)]) == 2
    assert capsys.readouterr().err.count("error: ") == 2
    assert main(["build", str(tmp_path / "out"), str(store)]) == 0
    assert len(pd.read_parquet(tmp_path / "out/runs/S.parquet")) == 4
