"""Runs the gates of one gate run on a real server."""
