"""Text of a release as a page shows it: coloured within bounds, and with what hides made visible."""
