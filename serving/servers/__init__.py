"""Clients of inference servers of every kind."""
