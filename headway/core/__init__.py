"""What everything rests on: mistakes in words, specs, files that are whole, random numbers, events, plugins."""
