"""Federated data: from arrays and public files to one packed store."""
