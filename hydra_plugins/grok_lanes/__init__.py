"""Hydra's door to lane sweeps: a sweeper that composes once per set-up, a launcher that hands over the whole plan."""
