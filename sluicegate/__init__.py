"""The project: settings, API-wide rules, the one-machine stack and the command line."""
