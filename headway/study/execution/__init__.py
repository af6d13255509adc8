"""How the runs of a study are trained, and where."""
