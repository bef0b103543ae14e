"""What a dry run says of a language model's memory follows its size."""

from __future__ import annotations

from pathlib import Path

from grok.commands.compose import gpt_settings
from grok.execute.estimate import PROCESS_BYTES, bytes_per_worker
from grok.execute.groups import prepare_runs
from grok.text.preparation import Request, prepare


def gigabytes(preset: str, data: Path, *words: str) -> float:
    config = gpt_settings(["mode=gpt", f"experiment=gpt/{preset}", f"data.path={data}", *words])
    return bytes_per_worker(prepare_runs([config]), 1) / 1e9


def test_memory_grows_with_the_model(tmp_path: Path) -> None:
    data = prepare(Request(form="fables", inputs=("30:0",), out=tmp_path / "data", tokenizer="char"))[0].path
    small, large = gigabytes("shakespeare_char", data), gigabytes("gpt_580m", data)
    assert PROCESS_BYTES / 1e9 < small < 0.7
    # 510M parameters at this vocabulary: weights, gradients, two moments and a half copy are 18 bytes each
    assert large > 0.51 * 18
    assert gigabytes("gpt_580m", data, "stability.policy=skip_data") > large + 0.51 * 12
    assert gigabytes("gpt_580m", data, "train.micro_batch=1") < large
