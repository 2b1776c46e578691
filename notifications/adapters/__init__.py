"""Adapters for HTTP receivers and the mail server, and the encryption of stored secrets."""
