"""Who is told of which events, by webhook or e-mail, and how each delivery went."""
