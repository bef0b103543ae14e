"""Training of a language model: engine, optimiser, schedules, checkpoints."""
