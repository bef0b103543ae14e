"""The one thing that pyproject.toml cannot say: an installed package carries conf/ inside, as grok.conf."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConf(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # an editable install reads conf/ where it stands
            target = Path(self.build_lib, "grok", "conf")
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree("conf", target, ignore=shutil.ignore_patterns("__pycache__"))


setup(cmdclass={"build_py": BuildWithConf})
