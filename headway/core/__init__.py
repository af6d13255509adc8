"""What everything rests on: error messages, specs, atomic files, random numbers, events, plugins."""
