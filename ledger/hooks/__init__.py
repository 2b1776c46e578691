"""What apps above the ledger register with it."""
