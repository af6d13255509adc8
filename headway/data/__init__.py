"""Where texts come from, and what a model sees at which step."""
