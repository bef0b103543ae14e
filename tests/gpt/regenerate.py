"""Write GPT's golden file anew: ``make golden`` (or ``python -m tests.gpt.regenerate``).

Do this only when results are meant to change: raise ``NUMERICS_VERSION`` in ``grok/config/identity.py``
first, and say why in ``CHANGELOG.md``. Hashes of other processors and torch versions are kept as long as
the version is the same.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from grok.config import NUMERICS_VERSION
from grok.records import RunResult
from tests.gpt.conftest import prepare_text, result_of, small, text_of
from tests.gpt.conftest import run as train_one

FILE = Path(__file__).with_name("golden.json")
CASES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "dropout": {"model__dropout": 0.2, "train__micro_batch": 4},
    "rotary": {
        "model__positions": "rotary", "model__norm_type": "rmsnorm", "model__qk_norm": True, "model__tied": False,
    },
    "alibi_bf16": {
        "model__positions": "alibi", "model__bias": False, "model__softmax": "float32", "precision": "bf16",
    },
    "mixture": {"data__mixture": {"main": 1, "other": 3}},
}  # fmt: skip


def two_corpora(folder: Path) -> tuple[str, str]:
    """Prepare the main corpus and the other one of a mixture; return their folders."""
    for name in ("main", "other"):
        (folder / name).mkdir()
    main, other = prepare_text(folder / "main", text_of(4000)), prepare_text(folder / "other", text_of(1600, seed=2))
    return str(main.path), str(other.path)


def run(case: str, data: str, other: str) -> RunResult:
    """Return the result of one golden case on the corpus in folder ``data``, or its mixture with that in ``other``."""
    shared = {"data__corpora": {"other": other}, "eval__every": 6, "eval__sample_tokens": 0}
    return result_of(train_one(small(Path(data), **shared, **CASES[case])))


def main() -> None:
    known = json.loads(FILE.read_text()) if FILE.exists() else {"version": None, "cases": {}}
    kept = known["cases"] if known["version"] == NUMERICS_VERSION else {}
    with tempfile.TemporaryDirectory() as folder:
        data, other = two_corpora(Path(folder))
        results = {case: run(case, data, other) for case in CASES}
    cases = {
        case: {
            "hashes": {**kept.get(case, {}).get("hashes", {}), r.numerics: r.weights_hash},
            "losses": [p.train_loss for p in r.step_log],
            "val_losses": [p.val_loss for p in r.curve],
        }
        for case, r in results.items()
    }
    FILE.write_text(json.dumps({"version": NUMERICS_VERSION, "cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
