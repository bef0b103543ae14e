from grok.store.contract import StoreContract


class TestStore(StoreContract):
    """The store keeps its contract."""
