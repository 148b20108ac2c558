"""Measurements side by side with other tools, one file a question; each runs as it stands."""
