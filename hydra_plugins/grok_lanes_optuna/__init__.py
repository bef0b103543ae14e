"""Hydra's door to searches: ``hydra/sweeper=lanes_optuna``."""
