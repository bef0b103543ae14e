"""``grok run --again RUN --store STORE``: is a stored run what its settings give?"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from grok.commands.command import Parser
from grok.commands.compose import values_of
from grok.errors import ConfigError

DESCRIPTION = """Train a stored run again, from its first step and with its settings and seeds; store nothing.

Prints both numerics tags, then `same bits` (exit status 0) or `other bits` (1): every evaluation that the store has,
and the final weights, are compared. Settings that say where the data is and how numbers are computed may be given:
data.path=DIR, device=cpu, numerics.path=plain, ...
"""


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status: 0 same bits, 1 other bits or interrupted.

    Raises:
        GrokError: there is no such run, or it cannot be trained here (exit status 2).
    """
    parser = Parser(prog="grok run", description=DESCRIPTION)
    parser.add_argument("--again", metavar="RUN", required=True, help="the beginning of one run_id")
    parser.add_argument("--store", metavar="STORE", default="results/store", help="its store (default: %(default)s)")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="where the data is, how to compute")
    words = parser.parse_intermixed_args(list(argv))
    for word in words.settings:
        if not word.partition("=")[2]:
            raise ConfigError(f"{word!r} has no value: settings are given as NAME=VALUE, for example device=cpu")
    changes = values_of(words.settings)
    from grok.execute.again import find_stored, train_again
    from grok.store import open_store

    stored = find_stored(open_store(words.store), words.again, changes)
    row = stored.row
    print(f"run {stored.run_id} ({row['mode']}, seed {row['seed']}), {row['steps']:,} steps: training it again")
    for note in stored.notes:
        print(f"note: {note}")
    sys.stdout.flush()
    try:
        repetition = train_again(stored)
    except KeyboardInterrupt:
        print("Interrupted: no verdict. Nothing is stored, and the same command begins anew.", flush=True)
        return 1
    print(f"stored: {repetition.stored_tag}")
    print(f"again:  {repetition.tag}")
    weights = " and the hash of the final weights" if repetition.hashed else ""
    same = f"same bits: {repetition.evaluations:,} evaluation{'s' * (repetition.evaluations != 1)}{weights}"
    print(same if repetition.same else f"other bits: {repetition.first_difference}", flush=True)
    return 0 if repetition.same else 1
