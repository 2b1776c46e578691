"""Signatures: public keys and this installation's own keys."""
