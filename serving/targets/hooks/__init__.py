"""What apps above serving register with it."""
