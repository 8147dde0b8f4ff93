"""Engines: the only place with autograd, threads, processes and devices."""
