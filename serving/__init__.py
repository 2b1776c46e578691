"""Where releases run: environments, servers, gateways, and one adapter for each outside system."""
