"""Read access to the event log, search, and the check of its integrity."""
