"""How numbers are computed: compilation, precision, matrix products, and what the machine offers."""
