"""The command line: a client of the REST API and nothing more."""
