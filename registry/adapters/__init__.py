"""Adapters to formats of other systems."""
