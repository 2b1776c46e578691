"""Passwords for tests: hashed as in use, but once instead of a million times."""

from __future__ import annotations

from django.contrib.auth.hashers import PBKDF2PasswordHasher


class OnceHashed(PBKDF2PasswordHasher):
    """Its hashes say how often they were hashed, so that any process can check them."""

    iterations = 1
