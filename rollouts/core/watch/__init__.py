"""The judgement of stable's objectives outside a rollout: pure."""
