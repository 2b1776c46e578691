"""The REST doors of the registry: parse, call, shape."""
