"""One adapter for each outside system: Triton, Envoy, Prometheus."""
