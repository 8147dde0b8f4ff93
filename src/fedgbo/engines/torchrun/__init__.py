"""Runs in several processes, on one machine or more, started by torchrun."""
