"""Numerics: compilation, precision and matrix products; also the machine's cores and memory."""
