"""Write the golden file anew: ``python -m tests.golden.regenerate``.

Do this only when results are meant to change: raise ``NUMERICS_VERSION`` in
``grok/config/identity.py`` first, and say why in ``CHANGELOG.md``. Hashes of other
processors and torch versions are kept as long as the version is the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from grok.config import NUMERICS_VERSION
from tests.arithmetic.cases import curve, results, tiny

FILE = Path(__file__).with_name("arithmetic.json")
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "pre-norm, tied, relu": {"model": {"norm": "pre", "tied": True, "activation": "relu"}},
    "float64": {"precision": "float64"},
    "dropout": {"model": {"dropout": 0.2}},
    "grokfast": {"optim": {"grokfast": "ema"}},
    "compiled": {"numerics": {"compile": True}},
    "onednn": {"numerics": {"path": "onednn"}},
}


def run(case: str) -> tuple[str, str, dict[int, tuple[float, ...]]]:
    """Return (numerics tag, weights hash, curve) of a case."""
    (found,) = results(tiny(**CASES[case]))
    assert found.weights_hash is not None
    return found.numerics, found.weights_hash, curve(found)


def main() -> None:
    torch.set_num_threads(1)
    old = json.loads(FILE.read_text()) if FILE.exists() else {}
    golden: dict[str, Any] = {"version": NUMERICS_VERSION, "cases": {}}
    for case in CASES:
        tag, weights_hash, found = run(case)
        kept = old["cases"].get(case, {}).get("hashes", {}) if old.get("version") == NUMERICS_VERSION else {}
        golden["cases"][case] = {"hashes": {**kept, tag: weights_hash}, "curve": {str(s): v for s, v in found.items()}}
    FILE.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
