"""Stand-ins for servers that the product talks to."""
