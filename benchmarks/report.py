"""The time of a report: ``python -m benchmarks.report [--runs 2000] [--evaluations 30]``.

Prints the seconds of each phase in a new process, including imports and reading, for a simulated census
of the default regime.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

PHASES = """
import json, sys, time
marks = [time.perf_counter()]
import analysis.figures, analysis.page
from analysis.observations import Observations
from analysis.answers import compile_report
from analysis.writing import write_report
from pathlib import Path
marks.append(time.perf_counter())
store = Observations.read(sys.argv[1])
marks.append(time.perf_counter())
report = compile_report(store)
marks.append(time.perf_counter())
write_report(report, Path(sys.argv[2]))
marks.append(time.perf_counter())
names = ("imports", "reading the store", "studies", "figures and page")
seconds = {n: round(b - a, 2) for n, a, b in zip(names, marks, marks[1:])}
print(json.dumps(seconds | {"all": round(marks[-1] - marks[0], 2)}))
"""


def main() -> int:
    """Make a store of simulated runs, write its report, and print the seconds of each phase as JSON."""
    from tests.analysis.simulate import census, write

    parser = argparse.ArgumentParser(prog="python -m benchmarks.report")
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--evaluations", type=int, default=30)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        every = max(1, 3000 // arguments.evaluations)
        store = write(census(arguments.runs, np.random.default_rng(0), steps=3000, every=every), Path(folder) / "store")
        command = [sys.executable, "-c", PHASES, str(store), str(Path(folder) / "out")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    print(json.dumps({"runs": arguments.runs, "evaluations": 3000 // every, "seconds": json.loads(done.stdout)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
