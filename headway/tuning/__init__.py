"""Hyperparameter search on the validation split; the best model is scored on test once."""
