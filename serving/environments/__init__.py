"""Environments, their rules, and what runs in them as rows."""
