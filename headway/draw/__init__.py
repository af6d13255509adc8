"""Drawing: maps, charts and pages."""
