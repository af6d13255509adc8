"""The input of audits for labelled texts, and the scores of classifiers, computed again."""
