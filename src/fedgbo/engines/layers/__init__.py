"""Layers that compute what torch's do, faster on one core: chosen by layer type, never by task."""

from fedgbo.engines.layers.accelerate import accelerate

__all__ = ["accelerate"]
