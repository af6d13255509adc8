"""How the runs of a study come about."""
