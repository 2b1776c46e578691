"""Honest stand-ins for outside systems; tests/contracts holds each beside the real one."""
