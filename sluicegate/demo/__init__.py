"""The demo: a real model, five releases, live traffic from the first to the last minute, and what was measured."""
