"""The tests for a GPU run where little more than torch and pytest is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MISSING = ("hypothesis", "hydra", "omegaconf", "duckdb", "optuna", "pytest_timeout", "xdist", "matplotlib", "joblib")
BARE = f"""
import importlib.abc, importlib.machinery, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {MISSING!r} else find_spec(name, package)
import pytest
sys.exit(pytest.main(["-m", "cuda", "-p", "no:cacheprovider", "-rs"]))
"""


@pytest.mark.slow
def test_the_tests_for_a_gpu_are_collected_without_the_dependencies_of_development() -> None:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-c", "import importlib.util" + BARE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error" not in done.stdout
    assert "skipped" in done.stdout or "passed" in done.stdout
