"""The search for good hyperparameters: what `fedgbo tune` does. Only `study` and what imports it needs optuna."""
