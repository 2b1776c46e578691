"""REST views of environments and node fit."""
