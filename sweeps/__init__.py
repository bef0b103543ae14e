"""Sweeps that are more than a product of values. Products with a name are in ``conf/sweep/``."""
