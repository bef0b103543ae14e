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
    configs = [run.config for run in runs if isinstance(run.config, ArithmeticConfig)]
    tables = sum(config.task.is_of_another_form() for config in configs)
    modules = sum(_is_plain(config) for config in configs) - tables
    if tables:
        yield (
            f"Plain path for {tables} run{'s' if tables > 1 else ''}: a table of your own (Examples) is trained one "
            "lane at a time, uncompiled (docs/plugins.md)"
        )
    if modules:
        yield (
            f"Plain path for {modules} run{'s' if modules > 1 else ''}: a torch module is trained one lane at a time, "
            "uncompiled; a lane model would share rows (docs/plugins.md)"
        )
    if store is not None and runs:
        yield from _changed(runs, store)


def _is_plain(config: ArithmeticConfig) -> bool:
    from grok.arithmetic.own_model import is_plain

    return is_plain(config)


def _changed(runs: list[PlannedRun], store: Store) -> Iterator[str]:
    """Yield why runs are trained although the store holds the same settings: their code was another one."""
    texts = {row["own_code"] for row in store.table("runs", None, ["own_code"]).to_pylist()} - {None}
    versions: list[Mapping[str, str]] = [json.loads(text) for text in sorted(texts)]
    statuses = store.statuses()
    count = 0
    now: dict[str, str] = {}
    older: dict[str, set[str]] = {}  # stored fingerprints by target
    for run in runs:
        named = dict(run.code or {})
        now |= named
        changed: dict[tuple[bool, int], list[dict[str, str]]] = {}  # stored fingerprints that differ, by nearness
        for before in versions:
            others = {target: before[target] for target in named if before.get(target, named[target]) != named[target]}
            if not others or not named.keys() <= before.keys():  # the same code, or that of other settings
                continue
            status = statuses.get(identify(run.config, run.data_hash, before).run_id)
            if status is not None:
                changed.setdefault((status == "failed", len(others)), []).append(others)
        count += bool(changed)
        for others in changed[min(changed)] if changed else []:  # completed runs first, then the fewest changes
            for target, fingerprint in others.items():
                older.setdefault(target, set()).add(fingerprint)
    if count:
        changes = [f"{target} ({' or '.join(sorted(older[target]))}, now {now[target]})" for target in sorted(older)]
        yield f"{count} of them are stored with other code and train anew: changed is {', '.join(changes)}"
