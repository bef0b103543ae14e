"""The store: every finished run in open parquet files; a kill or a crash loses no committed run.

Nothing here imports torch. ``docs/store.md`` lists the guarantees and how they are kept.
"""

from grok.store.designs import Purpose, Purposes
from grok.store.layout import StoreGone, check_path
from grok.store.provenance import Provenance
from grok.store.reader import DamagedShardWarning, Store, open_store
from grok.store.recovery import ForeignFileWarning
from grok.store.rows import Row
from grok.store.writer import StoreWriter

__all__ = [
    "DamagedShardWarning",
    "ForeignFileWarning",
    "Provenance",
    "Purpose",
    "Purposes",
    "Row",
    "Store",
    "StoreGone",
    "StoreWriter",
    "check_path",
    "open_store",
]
