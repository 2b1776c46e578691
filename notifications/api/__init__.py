"""REST views of webhooks and their deliveries."""
