"""Counts and tables about the code itself."""
