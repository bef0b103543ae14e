"""Search over settings with Optuna. A trial is one setting, trained with the same seeds as every other trial."""
