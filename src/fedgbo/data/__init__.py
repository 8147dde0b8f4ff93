"""Federated data: samples, partitioners, readers of public files, the packed store, synthetic stand-ins."""
