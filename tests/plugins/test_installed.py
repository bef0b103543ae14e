"""Installed code is named by its version and by the file of its module."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

from grok.plugins import code_of


@pytest.mark.parametrize("module", ["torch.optim.adamw", "grok.arithmetic.model", "joblib.hashing"])
def test_installed_code_is_named_by_its_file(tmp_path: Path, module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    own = hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
    name = module.split(".")[0].replace("grok", "grok-lab")
    fingerprint = code_of(tmp_path, [f"{module}.X"]).targets[f"{module}.X"].fingerprint
    assert fingerprint == f"{name} {importlib.metadata.version(name)}:{own[:16]}"
