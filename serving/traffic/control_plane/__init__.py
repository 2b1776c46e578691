"""The control plane: publishes routes and clusters from the database to every gateway of an environment, over delta ADS."""
