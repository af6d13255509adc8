"""Everything that is drawn: maps, charts, pages."""
