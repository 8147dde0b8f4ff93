"""Experiments: presets, comparisons, the paper's tables and figures."""
