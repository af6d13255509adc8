"""What audits are given of labelled texts, and the scores of classifiers, computed again."""
