"""From a model and a split to a number that says what it is."""
