"""Mutation score of the pure cores: one small change at a time, and do the tests notice? `python -m tests.mutants --help`."""
