"""Cases: reported experiments and exercises, repeated."""
