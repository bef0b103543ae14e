"""Write the golden files anew: ``make golden`` (or ``python -m tests.golden.regenerate`` for the arithmetic mode).

Do this only when results are meant to change: raise ``NUMERICS_VERSION`` in
``grok/config/identity.py`` first, and say why in ``CHANGELOG.md``. Hashes of other
processors and torch versions are kept as long as the version is the same. So are the
names of runs (``identity.json``): they may not change at all within one version,
because every store that people have is addressed by them.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from grok.config import NUMERICS_VERSION, identify, load_config
from tests.arithmetic.cases import curve, results, tiny

FILE = Path(__file__).with_name("arithmetic.json")
IDENTITY = Path(__file__).with_name("identity.json")
NAMED: dict[str, tuple[dict[str, Any], str | None]] = {
    "default": ({}, None),
    "seed 7": ({"seed": 7, "seeds": {"init": 3, "layers": {"blocks.1": 5}}}, None),
    "dropout and perturbation": ({"model": {"dropout": 0.1}, "perturb": {"ulps": 1}, "replicate": 2}, None),
    "coupled order": ({"eval": {"couple_order": True, "schedule": "log"}, "train": {"steps": 500}}, None),
    "language model": (
        {"mode": "gpt", "experiment": "gpt/shakespeare_char", "data": {"path": "anywhere"}, "seed": 1},
        "a data hash",
    ),
}
"""Case: its settings, and the hash of its data."""
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "pre-norm, tied, relu": {"model": {"norm": "pre", "tied": True, "activation": "relu"}},
    "float64": {"precision": "float64"},
    "dropout": {"model": {"dropout": 0.2}},
    "grokfast": {"optim": {"grokfast": "ema"}},
    "perturbation": {"perturb": {"ulps": 1}},
    "label noise": {"task": {"label_noise": 0.3}},
    "compiled": {"numerics": {"compile": True}},
    "onednn": {"numerics": {"path": "onednn"}},
}


def run(case: str) -> tuple[str, str, dict[int, tuple[float, ...]]]:
    """Return (numerics tag, weights hash, curve) of a case."""
    (found,) = results(tiny(**CASES[case]))
    assert found.weights_hash is not None
    return found.numerics, found.weights_hash, curve(found)


def names(case: str) -> dict[str, str]:
    """Return the three names of a run."""
    settings, data_hash = NAMED[case]
    return asdict(identify(load_config(settings), data_hash))


def main() -> None:
    torch.set_num_threads(1)
    old = json.loads(FILE.read_text()) if FILE.exists() else {}
    golden: dict[str, Any] = {"version": NUMERICS_VERSION, "cases": {}}
    for case in CASES:
        tag, weights_hash, found = run(case)
        kept = old["cases"].get(case, {}).get("hashes", {}) if old.get("version") == NUMERICS_VERSION else {}
        golden["cases"][case] = {"hashes": {**kept, tag: weights_hash}, "curve": {str(s): v for s, v in found.items()}}
    FILE.write_text(json.dumps(golden, indent=1) + "\n")
    identities = {"version": NUMERICS_VERSION, "names": {case: names(case) for case in NAMED}}
    IDENTITY.write_text(json.dumps(identities, indent=1) + "\n")


if __name__ == "__main__":
    main()
