"""The project: settings, API-wide rules, the stack for a single machine, and the command line."""
