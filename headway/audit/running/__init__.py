"""What audits are given of running text, and the scores of language models, computed again."""
