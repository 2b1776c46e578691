"""Text of a release as a page shows it, with what hides made visible."""
