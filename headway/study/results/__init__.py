"""The results of a study, read from run folders."""
