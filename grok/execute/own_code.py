"""What a plan says about code of the user's own: which it is, how it trains, and why stored runs do not count."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from grok.config import ArithmeticConfig, identify
from grok.execute.plan import Plan
from grok.execute.planned import PlannedRun
from grok.plugins import label
from grok.store import Store


def own_code_lines(plan: Plan, store: Store | None) -> Iterator[str]:
    """Yield lines on the code that the runs to train name; none where they name none."""
    runs = [run for run in plan.to_train if run.code]
    named = {
        (name, label(spec), (run.code or {})[str(spec["_target_"])])
        for run in {run.identity.config_id: run for run in runs}.values()
        for name, spec in run.config.plugins().items()
    }
    for name, called, fingerprint in sorted(named):
        yield f"Your code: {name}={called} ({fingerprint})"
    if plain := sum(_is_plain(run) for run in runs):
        yield (
            f"Plain path for {plain} run{'s' if plain > 1 else ''}: a torch module is trained one lane at a time, "
            "uncompiled; a lane model would be compiled or share rows (docs/plugins.md)"
        )
    if store is not None and runs:
        yield from _changed(runs, store)


def _is_plain(run: PlannedRun) -> bool:
    config = run.config
    if not isinstance(config, ArithmeticConfig):
        return False
    from grok.arithmetic.own_model import is_plain

    return is_plain(config)


def _changed(runs: list[PlannedRun], store: Store) -> Iterator[str]:
    """Yield why runs are trained although the store holds the same settings: their code was another one."""
    texts = {row["own_code"] for row in store.table("runs", None, ["own_code"]).to_pylist()} - {None}
    stored = store.run_ids()
    for text in sorted(texts):
        before: Mapping[str, str] = json.loads(text)
        alike = [
            run
            for run in runs
            if run.code
            and run.code.keys() <= before.keys()
            and identify(run.config, run.data_hash, before).run_id in stored
        ]
        if not alike:
            continue
        now = alike[0].code or {}
        changes = [f"{target} ({before[target]}, now {now[target]})" for target in now if now[target] != before[target]]
        yield f"{len(alike)} of them are stored with other code and train anew: changed is {', '.join(changes)}"
