"""What is refused before anything is written: settings, data and devices that no run could be trained with. No torch,
but where a question needs the model's tensors or a checkpoint."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from grok.config import ArithmeticConfig, GptConfig, RunConfig
from grok.config.common import SinksConfig
from grok.config.fields import canonical_json, walk
from grok.config.gpt import MAIN
from grok.errors import ConfigError, DataError
from grok.execute.executors.base import refuse_unavailable
from grok.execute.groups import PlannedRun
from grok.execute.plan import visible_gpus
from grok.execute.resume import refuse_unusable_parents
from grok.gpt.schedules import Ramp, refuse_changing_shapes
from grok.plugins import label, load
from grok.processes import Rank
from grok.store import Store
from grok.streams import layer_seeds

C = TypeVar("C", bound=RunConfig | SinksConfig)


def refuse_missing_device(shared: RunConfig, configs: Sequence[RunConfig]) -> None:
    """Refuse a device or a precision that this machine lacks, or that stacked lanes do not carry.

    Args:
        shared: the command's own settings, which name the device.
        configs: those of all its runs, which may differ in the rest.

    Raises:
        ConfigError: names the setting, and what would do.
    """
    gpus = 0 if shared.device == "cpu" else visible_gpus()
    local = shared.executor in ("inline", "loky")
    if local and shared.device == "cuda" and not gpus:
        raise ConfigError("device=cuda: this machine has no usable GPU, expected device=cpu or device=auto")
    bound = dict.fromkeys(name for config in configs for name in config.only_on_cpu())
    if shared.device == "cuda" and bound:
        raise ConfigError(f"device=cuda: stacked lanes do not carry {', '.join(bound)} yet, set device=cpu")
    fused = [config for config in configs if config.numerics.kernels == "fused"]
    if fused and (shared.device == "cpu" or (local and not gpus) or not all(map(_has_fused_kernels, fused))):
        raise ConfigError(
            "numerics.kernels=fused is for stacked lanes on a GPU with model.norm=post, model.dropout=0, "
            "model.d_model of at most 256, and not in bf16: expected numerics.kernels=compiled, no precision=tf32x3"
        )
    if local and not gpus and any(config.precision == "tf32" for config in configs):
        raise ConfigError("precision=tf32 needs a GPU: expected float32, float64 or bf16 here")


def _has_fused_kernels(config: RunConfig) -> bool:
    if not isinstance(config, ArithmeticConfig) or config.only_on_cpu() or config.precision == "bf16":
        return False
    return config.model.norm == "post" and config.model.dropout == 0 and config.model.d_model <= 256


def refuse_unknown_tensors(configs: Sequence[RunConfig]) -> None:
    """Refuse ``seeds.layers`` that name no tensor, before anything is written.

    The one question of planning that needs the model and with it torch: asked only of
    configs that re-seed tensors. (A GPT's tensors depend on its corpus: its engine asks.)
    """
    renewing = (c for c in configs if isinstance(c, ArithmeticConfig) and c.seeds.layers and not c.plugins())
    for config in _distinct(renewing, lambda c: [asdict(c.model), asdict(c.task), sorted(c.seeds.layers)]):
        from grok.arithmetic.weights import parameter_shapes

        layer_seeds(list(parameter_shapes(config)), config.seeds.layers, 0)


def refuse_without_effect(configs: Sequence[GptConfig]) -> None:
    """Refuse settings of new language models that would have no effect, or that could not be compiled.

    Runs that are stored with them stay readable.

    Raises:
        ConfigError: a limit could never be reached: names the settings, and what would do.
        DataError: a mask of documents, and a corpus in which none ends.
    """
    _refuse_masks_without_ends(configs)
    for config in configs:
        refuse_changing_shapes(config, Rank.of_this_process().size)
        optim, train = config.optim, config.train
        if optim.warmup_samples is not None and optim.decay_steps is not None and optim.schedule != "one_cycle":
            warm = Ramp.of(train.batch_ramp, train.batch_size).steps(optim.warmup_samples)
            if optim.decay_steps <= warm:
                raise ConfigError(
                    f"optim.decay_steps={optim.decay_steps} ends the decay before the warm-up of optim.warmup_samples="
                    f"{optim.warmup_samples} is over, at step {warm}: expected more than {warm}, or fewer samples"
                )


def refuse_unusable_code(configs: Sequence[RunConfig]) -> None:
    """Refuse code of the user's own that cannot train a step, before anything is written.

    Raises:
        GrokError: it cannot be imported, does not fit the contracts, or fails.
    """

    def trained(config: RunConfig) -> list[Any]:
        result = {name: value for name, value, rule in walk(config) if rule.role == "result"}
        return [result, config.plugins(), sorted(config.seeds.layers)]

    for config in _distinct((c for c in configs if c.plugins()), trained):
        from grok.arithmetic import engine as arithmetic
        from grok.gpt.training import engine as gpt

        if isinstance(config, ArithmeticConfig):
            arithmetic.refuse_unusable(config)
        elif isinstance(config, GptConfig):
            gpt.refuse_unusable(config)


def refuse_unusable_logs(logs: Sequence[SinksConfig]) -> None:
    """Refuse a log beside the store whose package is not installed, or whose code cannot be called.

    Raises:
        ConfigError: names the setting, and what would do.
    """
    for name in ("tensorboard", "wandb"):  # each the name of its package, too
        if any(getattr(log, name) for log in logs) and importlib.util.find_spec(name) is None:
            raise ConfigError(f"log.{name} needs the {name} package: pip install 'grok-lab[sinks]', or leave it out")
    for log in _distinct(logs, lambda log: log.plugin):
        if log.plugin and not callable(load(log.plugin)):
            raise ConfigError(f"log.plugin={label(log.plugin)} cannot be called: expected a class")


def refuse_unusable_tasks(configs: Sequence[RunConfig]) -> None:
    """Refuse tasks of language models that nothing here can score. What a file says is checked when its run starts.

    Raises:
        ConfigError: the harness is not installed or does not know a name, or a YAML file is not there.
    """
    tasks = {task for config in configs if isinstance(config, GptConfig) for task in config.eval.tasks}
    if tasks and importlib.util.find_spec("lm_eval") is None:
        raise ConfigError("eval.tasks needs lm-evaluation-harness: pip install 'grok-lab[tasks]'")
    for task in sorted(tasks):
        if task.endswith((".yaml", ".yml")) and not Path(task).is_file():
            raise ConfigError(f"eval.tasks={task}: there is no such file")
    if tasks:
        from grok.gpt.harness import refuse_unknown_tasks

        refuse_unknown_tasks(sorted(tasks), "eval.tasks=")


def refuse_unusable_data(configs: Sequence[RunConfig]) -> None:
    """Refuse a corpus that is damaged, or that the model cannot train on, before anything is written.

    Raises:
        DataError: tokens are missing or cut off, the tokeniser is another one, a split is missing or shorter
            than a block, or the model's vocabulary is too small.
    """

    def read(config: GptConfig) -> list[Any]:
        data, model = config.data, config.model
        return [data.folders(), data.mixture, data.validation, model.context, model.vocab_size]

    for config in _distinct((c for c in configs if isinstance(c, GptConfig) and c.data.path is not None), read):
        from grok.text.corpus import check_fit, open_corpus, refuse_other_tokenizer

        data, model = config.data, config.model
        corpora = {name: open_corpus(folder) for name, folder in data.folders().items()}
        asked = {(MAIN, "train"), (MAIN, "val"), *((name, "train") for name in data.mixture)}
        asked.update(data.validation_sets().values())
        for name, corpus in corpora.items():
            refuse_other_tokenizer(corpus, corpora[MAIN])
            splits = sorted(split for of, split in asked if of == name)
            check_fit(corpus, context=model.context, vocab_size=model.vocab_size, splits=splits)


def _refuse_masks_without_ends(configs: Sequence[GptConfig]) -> None:
    """Refuse to mask documents of a single text, whose tokeniser may have an end that the text has nowhere."""
    from grok.text.corpus import open_corpus

    masked = (config for config in configs if config.data.document_mask and config.data.path is not None)
    for config in _distinct(masked, lambda c: [c.data.folders(), c.data.mixture]):
        data, folders = config.data, config.data.folders()
        for name in [name for name, weight in data.mixture.items() if weight > 0] or [MAIN]:
            if (corpus := open_corpus(folders[name])).document_end is None:
                raise DataError(
                    f"data.document_mask=true, and {corpus.path} has no <|endoftext|> between documents: prepare a "
                    "text of several documents, or leave data.document_mask out"
                )


def refuse_impossible(shared: RunConfig, requested: Sequence[PlannedRun], store: Store | None) -> None:
    """Refuse what could not be trained; ``shared`` are the command's own settings, ``store`` what is stored, if any.

    Raises:
        ConfigError: a device or an executor that this machine lacks, a seed for a tensor that no model has, or
            compilation of batches whose shape changes.
        DataError: a corpus that is damaged or does not fit the model.
        CheckpointError: a run that cannot go on from the checkpoint that it names.
    """
    configs = [run.config for run in requested]
    refuse_missing_device(shared, configs)
    refuse_unavailable(shared.executor, shared.plugin_path)
    refuse_unusable_code(configs)
    refuse_unusable_logs([config.log for config in configs])
    refuse_unusable_tasks(configs)
    refuse_unknown_tensors(configs)
    refuse_unusable_data(configs)
    if any(isinstance(config, GptConfig) for config in configs):
        stored = store.run_ids() if store is not None else set()  # a finished sweep may be given again
        new = [run for run in requested if run.run_id not in stored]
        refuse_without_effect([run.config for run in new if isinstance(run.config, GptConfig)])
        refuse_unusable_parents(new)


def _distinct(configs: Iterable[C], key: Callable[[C], Any]) -> Iterator[C]:
    """Yield the first of all configs with equal keys."""
    seen = set()
    for config in configs:
        text = canonical_json(key(config))
        if text not in seen:
            seen.add(text)
            yield config
