"""Sweeps that need more than a product of values. The named products are in ``conf/sweep/``."""
