"""The search for good hyperparameters (`fedgbo tune`). All modules but `plan` need optuna."""
