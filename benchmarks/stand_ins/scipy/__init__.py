"""Stands in for SciPy where it is missing and a device is to be measured: ``benchmarks.device_day`` adds it."""
