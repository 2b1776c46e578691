"""Traffic through gateways: the series that are kept of it."""
