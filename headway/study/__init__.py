"""Studies: what varies and what is asked; the runs, the verdicts, the report."""
