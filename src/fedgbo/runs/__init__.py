"""Runs: configuration, the one round loop, recording, checkpoints."""
