"""The arithmetic mode: small transformers on tables of equations, as lanes."""
