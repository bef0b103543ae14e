"""What stands in examples/ does what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from grok.__main__ import main
from grok.commands.compose import compose
from grok.config import load_config
from grok.execute.groups import prepare_runs
from grok.execute.refusals import refuse_unusable_code
from grok.plugins import Operation, activate, build, code_of
from tests.plugins.conftest import Write  # noqa: F401 (its module forgets the code behind each test)

EXAMPLES = Path(__file__).parents[2] / "examples"
MODULES = sorted(EXAMPLES.glob("*.py"))


def command(file: Path) -> list[str]:
    """Return the words behind ``grok sweep``, ``grok report`` or ``grok prepare`` in a module's docstring."""
    text = file.read_text(encoding="utf-8").replace("\\\\\n", " ").replace("\\\n", " ")
    match = re.search(r"^ {4}grok (sweep|report|prepare) (.*)$", text, re.MULTILINE)
    assert match is not None, f"{file.name} opens with its own command"
    return [match[1], *shlex.split(match[2])]


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.stem)
def test_an_example_is_short_and_its_command_can_be_carried_out(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) < 100
    kind, *words = command(file)
    if kind == "report":
        target = words[words.index("--with") + 1]
        assert target.startswith(f"{file.stem}.")
        return
    if kind == "prepare":  # carried out by tests/text/test_own_text.py
        assert words[0].startswith(f"{file.stem}.")
        return
    one = [word for word in words if not word.startswith("seed=")]
    config = load_config(compose([*one, f"plugin_path={EXAMPLES}", "numerics.compile=false"]))
    prepare_runs([config])
    refuse_unusable_code([config])


def test_the_dihedral_table_is_a_group_that_does_not_commute() -> None:
    activate(code_of(EXAMPLES, ["dihedral.dihedral"]))
    operation = build({"_target_": "dihedral.dihedral", "n": 5})
    assert isinstance(operation, Operation)
    table = operation.table
    everything = np.arange(10)
    assert (table[0] == everything).all() and (table[:, 0] == everything).all()
    assert all(sorted(row) == list(everything) for row in (*table, *table.T))
    assert (table[table] == table[np.arange(10)[:, None, None], table[None]]).all(), "associative"
    assert (table != table.T).any()


def test_muon_moves_matrices_along_orthogonal_directions() -> None:
    activate(code_of(EXAMPLES, ["muon.Muon", "muon.orthogonalised"]))
    matrix = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(build({"_target_": "muon.orthogonalised"}, matrix))
    assert values.min() > 0.5 and values.max() < 1.3
    hidden, head = (torch.nn.Parameter(torch.zeros(4, 4)) for _ in range(2))
    optimizer = build({"_target_": "muon.Muon", "lr": 0.1, "momentum": 0.0}, [("hidden", hidden), ("head", head)])
    for p in (hidden, head):
        p.grad = torch.eye(4) * torch.tensor([1.0, 10.0, 100.0, 1000.0])
    optimizer.step()
    assert torch.linalg.svdvals(hidden.detach()).max() < 0.13
    torch.testing.assert_close(head.detach().diagonal(), torch.full((4,), -0.01))


def test_examples_are_written_into_a_folder_and_never_over_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "new")
    assert main(["examples", out]) == 0
    assert {file.name for file in (tmp_path / "new").iterdir()} == {file.name for file in MODULES}
    assert "margin.py: Your own metric" in capsys.readouterr().out
    mine, lost = tmp_path / "new" / "margin.py", tmp_path / "new" / "words.py"
    mine.write_text("mine")
    lost.unlink()
    assert main(["examples", out]) == 0
    assert mine.read_text() == "mine" and lost.exists()
