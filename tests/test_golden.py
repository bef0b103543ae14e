"""The same settings give the same bits as when they were last meant to change.

Bits are compared where the golden file knows this processor, torch and path; the curves
are compared everywhere, to the rounding that another processor may add.
"""

import json

import pytest

from grok.config import NUMERICS_VERSION
from tests.golden.regenerate import CASES, FILE, IDENTITY, NAMED, names, run

GOLDEN = json.loads(FILE.read_text())
HOW = "if this is meant: raise NUMERICS_VERSION, say why in CHANGELOG.md, run make golden"


def test_the_golden_file_is_of_this_version() -> None:
    assert GOLDEN["version"] == NUMERICS_VERSION, HOW
    assert GOLDEN["cases"].keys() == CASES.keys()


@pytest.mark.parametrize("case", [case for case in CASES if case != "compiled"])  # test_compiled.py compiles it once
def test_bits_and_curve(case: str) -> None:
    check_golden(case, *run(case))


def check_golden(case: str, tag: str, weights_hash: str, found: dict[int, tuple[float, ...]]) -> None:
    golden = GOLDEN["cases"][case]
    assert [str(step) for step in found] == list(golden["curve"])
    for step, values in found.items():
        assert values == pytest.approx(golden["curve"][str(step)], rel=1e-3, abs=1e-3), HOW
    if tag not in golden["hashes"]:
        pytest.skip(f"the curve holds; no bits are kept for {tag}: make golden adds them")
    assert golden["hashes"][tag] == weights_hash, HOW


@pytest.mark.parametrize("case", NAMED)
def test_names_of_runs(case: str) -> None:
    kept = json.loads(IDENTITY.read_text())
    assert kept["version"] == NUMERICS_VERSION, HOW
    assert names(case) == kept["names"][case], "a setting that is added needs `neutral=`; see grok/config/fields.py"
