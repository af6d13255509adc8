"""Models as others write them down, both ways."""
