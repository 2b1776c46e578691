"""Judges stable's objectives all the time, in a thread of the engine that leads."""
