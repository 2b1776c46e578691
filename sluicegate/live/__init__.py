"""Live pages: one event stream for each browser, which says what changed, and never what it is now."""
