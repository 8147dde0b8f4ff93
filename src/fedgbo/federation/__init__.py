"""Federations as processes: certificates and keys, a SuperLink and its SuperNodes, app folders, monitoring.

Flower's own processes do the networking, and `fedgbo.flower` runs inside them. This package starts, watches and stops
them.
"""
