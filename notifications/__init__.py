"""Webhooks and e-mails about events, and the outcome of each delivery."""
