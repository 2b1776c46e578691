"""Who may read which events of the log, and whether the log is still what was written."""
