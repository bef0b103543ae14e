"""A replacement of SciPy for machines without it; ``benchmarks.device_day`` adds it to the path."""
