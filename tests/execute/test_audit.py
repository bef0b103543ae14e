"""Anyone can check a row: its command gives the same bits again, from committed code where that is asked."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from grok.config import ArithmeticConfig
from grok.errors import ConfigError
from grok.execute.groups import prepare_runs
from grok.execute.plan import make_plan
from grok.execute.progress import plan_lines
from grok.execute.worker import refuse_unclean
from grok.store import Provenance, open_store
from tests.doors.conftest import TINY, Door

SETTINGS = {
    "layers, replicate and streams": [
        "seed=3,4", "seeds.layers={head:9,blocks.0.mlp:11}", "replicate=2", "seeds.order=77", "model.dropout=0.1",
        "seeds.dropout=123456789012345678", "perturb.ulps=3", "seeds.perturb=5",
    ],
    "numbers and choices": [
        "seed=5", "task.operation=x^2+xy+y^2+x", "optim.betas=[0.8,0.95]", "optim.lr=1e-05", "precision=float64",
        "seeds.split=1", "eval.shuffle=true", "eval.passes=2", "seeds.eval=9",
    ],
    "words": ["seed=6", "task.operation='x/y if y odd else x-y'", "save=init,final", "eval.couple_order=true"],
}  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=[pytest.mark.slow] * (name == "words"), id=name) for name, words in SETTINGS.items()],
)
def test_the_command_in_a_row_gives_its_run_again(door: Door, tmp_path: Path, words: list[str]) -> None:
    assert door("-m", *TINY, *words, "store.path=S", "executor=inline").status == 0
    rows = open_store(tmp_path / "S").runs().set_index("run_id")
    for command in rows["rerun"]:
        python, option, module, *overrides = shlex.split(command)
        assert (python, option, module) == ("python", "-m", "grok.run")
        ended = door(*overrides, "store.path=again")
        assert ended.status == 0, ended
    again = open_store(tmp_path / "again").runs().set_index("run_id")
    assert again["weights_hash"].to_dict() == rows["weights_hash"].to_dict()
    assert rows["weights_hash"].notna().all()


def test_code_that_is_not_committed_is_refused_where_that_is_asked() -> None:
    """Also by a worker, which may run other code than its sweep; and where nobody can tell."""
    here, asked = Provenance.collect(), ArithmeticConfig(require_clean=True)
    plan = make_plan(prepare_runs([ArithmeticConfig()]), None)
    noted = [sum("git_dirty" in s for s in plan_lines(plan, None, replace(here, git_dirty=d))) for d in (True, False)]
    assert noted == [1, 0], "the plan says it before it trains"
    refuse_unclean(replace(here, git_commit="0" * 40, git_dirty=False), asked)
    for dirty, says in ((True, "not committed"), (None, "no git checkout")):
        with pytest.raises(ConfigError, match=says):
            refuse_unclean(replace(here, git_dirty=dirty), asked)
        refuse_unclean(replace(here, git_dirty=dirty), ArithmeticConfig())
