"""What pyproject.toml cannot say: an installed package carries conf/ and examples/ inside, in grok/."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConf(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # an editable install reads conf/ where it stands
            for name in ("conf", "examples"):
                target = Path(self.build_lib, "grok", name)
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(name, target, ignore=shutil.ignore_patterns("__pycache__"))


setup(cmdclass={"build_py": BuildWithConf})
