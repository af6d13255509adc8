"""Statistics: confidence intervals and tests on plain numbers."""
