"""REST views of the event log."""
