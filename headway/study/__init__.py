"""Studies: design, execution, results, verdicts and reports."""
