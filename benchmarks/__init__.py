"""Measurements: ratios side by side in one run, never times asserted in a test."""
