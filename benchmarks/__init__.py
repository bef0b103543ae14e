"""Measurements. They compare contenders in one run and give ratios; no test asserts a time."""
