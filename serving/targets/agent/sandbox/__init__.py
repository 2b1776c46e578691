"""The sandbox that a release's server runs in: what it may reach, and how much of it.

`python -S -m serving.targets.agent.sandbox SPEC` shuts itself in as the file says and becomes the server. The standard library only, as
the shim: what runs here runs once for every server, and waits beside it.
"""
