"""The input of audits for running text, and the scores of language models, computed again."""
