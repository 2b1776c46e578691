"""The control plane: tells every gateway of an environment what the database says, over delta ADS."""
