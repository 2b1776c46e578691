"""REST views of rollouts and of the serving history."""
