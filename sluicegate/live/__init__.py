"""Live pages: an event stream for each browser, with the names of changed parts and never their content."""
