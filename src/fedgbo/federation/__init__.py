"""Federations as processes: certificates, keys, a SuperLink and its SuperNodes, app directories, what happens there.

Flower's own processes do the network; `fedgbo.flower` is what runs inside them; this room starts, watches and ends
them.
"""
