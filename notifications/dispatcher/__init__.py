"""The dispatcher: collects new events and delivers due messages concurrently."""
