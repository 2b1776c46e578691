"""False alarms and delays of the watch, on simulated traffic."""
