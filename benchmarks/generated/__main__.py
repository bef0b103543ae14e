"""Generates and examines CUDA code without a device; prints JSON.

python -m benchmarks.generated count         kernels, operations and bytes of a step, its update, an evaluation
python -m benchmarks.generated cubins        every kernel compiled for sm_90; those written by hand for others, too
python -m benchmarks.generated page          the table of docs/internals.md, from benchmarks/generated_count.json
python -m benchmarks.generated interpret     the generated step, interpreted, against the uncompiled one
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks.generated.page import COUNT, page
from benchmarks.generated.pretence import pretend


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.generated",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["count", "cubins", "interpret", "page"])
    parser.add_argument("--width", type=int, default=264, help="lanes; the default is that of an H200")
    parser.add_argument("--config", type=json.loads, default={}, help="settings over the default regime's, as JSON")
    arguments = parser.parse_args()
    if arguments.what == "page":
        print(page(json.loads(COUNT.read_text())))
        return 0
    pretend(interpreter=arguments.what == "interpret")
    if arguments.what == "interpret":
        from benchmarks.generated.interpreted import outcome

        result = {precision: outcome(precision, arguments.config) for precision in ("float32", "float64")}
    else:
        result = examined(arguments.what, arguments.width, arguments.config)
    json.dump(result, sys.stdout, indent=1)
    print()
    return 0


def examined(what: str, width: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of the generated graphs, or the properties of their machine code."""
    import torch

    from benchmarks.generated.count import counted, launches_of, machine_code
    from benchmarks.generated.graphs import graphs_of
    from grok.config import ArithmeticConfig, load_config

    config = load_config({"mode": "arithmetic", **settings})
    assert isinstance(config, ArithmeticConfig)
    graphs = graphs_of(config, width)
    if what == "cubins":
        return {name: machine_code(graph.kernels, launches_of(graph)) for name, graph in graphs.items()}
    counts = {name: counted(graph) for name, graph in graphs.items()}
    return {"torch": torch.__version__, "width": width, "graphs": counts}


if __name__ == "__main__":
    sys.exit(main())
