"""Models, built by plain functions."""
