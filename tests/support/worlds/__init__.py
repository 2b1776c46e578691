"""Rows, files and requests as tests need them."""
