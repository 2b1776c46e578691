"""What apps above the registry register with it."""
