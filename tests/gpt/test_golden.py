"""The same settings give the same bits as when they were last meant to change.

Bits are compared where the golden file knows this processor, torch and path; losses are compared
everywhere, to the rounding that another processor may add.
"""

import json

import pytest

from grok.config import NUMERICS_VERSION
from tests.gpt.regenerate import CASES, FILE, run, two_corpora

GOLDEN = json.loads(FILE.read_text())
HOW = "if this is meant: raise NUMERICS_VERSION, say why in CHANGELOG.md, run make golden"


def test_the_golden_file_is_of_this_version() -> None:
    assert GOLDEN["version"] == NUMERICS_VERSION, HOW
    assert GOLDEN["cases"].keys() == CASES.keys()


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return two_corpora(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("case", CASES)
def test_bits_and_losses(case: str, corpora: tuple[str, str]) -> None:
    result, golden = run(case, *corpora), GOLDEN["cases"][case]
    assert [p.train_loss for p in result.step_log] == pytest.approx(golden["losses"], rel=1e-3), HOW
    assert [p.val_loss for p in result.curve] == pytest.approx(golden["val_losses"], rel=1e-3), HOW
    if result.numerics not in golden["hashes"]:
        pytest.skip(f"the losses hold; no bits are kept for {result.numerics}: make golden adds them")
    assert result.weights_hash == golden["hashes"][result.numerics], HOW
