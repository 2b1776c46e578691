"""Adapters that more than one room needs."""
