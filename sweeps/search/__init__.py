"""Searches settings with Optuna: each trial one setting, trained over the same seeds as lanes side by side."""
