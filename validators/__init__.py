"""What proves a release: gates, their verdicts and their evidence."""
