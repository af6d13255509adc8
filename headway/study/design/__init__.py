"""What is to be found out: arms, seeds, questions, claims; everything that can be wrong with it."""
