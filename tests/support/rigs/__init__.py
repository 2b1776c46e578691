"""Real parts, started for tests."""
