"""Algorithms of the run folders that tests write by hand."""

FEDAVG = {"name": "fedavg", "optimiser": {"name": "sgd", "lr": 0.1}}
FEDGBO = {"name": "fedgbo", "optimiser": {"name": "sgdm", "lr": 0.1, "beta": 0.9}}
