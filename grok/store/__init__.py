"""The store: every finished run in open parquet files; a kill or a crash loses no committed run.

Nothing here imports torch. ``docs/store.md`` lists the guarantees and how they are kept.
"""

from grok.store.designs import Design, Purpose, Purposes
from grok.store.layout import StoreGone, check_path
from grok.store.leases import Claim
from grok.store.provenance import Provenance
from grok.store.reader import DamagedShardWarning, Store, open_store
from grok.store.recovery import ForeignFileWarning, Recovered
from grok.store.rows import Conflict, Row
from grok.store.writer import CommitReport, StoreWriter

__all__ = [
    "Claim",
    "CommitReport",
    "Conflict",
    "DamagedShardWarning",
    "Design",
    "ForeignFileWarning",
    "Provenance",
    "Purpose",
    "Purposes",
    "Recovered",
    "Row",
    "Store",
    "StoreGone",
    "StoreWriter",
    "check_path",
    "open_store",
]
