"""The rollout engine: observe, evaluate, apply, record."""
