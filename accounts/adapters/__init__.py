"""Identity providers."""
