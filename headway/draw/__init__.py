"""One stack for everything that is drawn: maps, charts, pages."""
