"""REST views of golden sets, gate runs and reports."""
