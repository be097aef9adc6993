"""Runs: configuration, training, checkpoints."""
