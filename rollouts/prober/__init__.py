"""The prober: sends users' requests and golden items to live rollouts' servers, and counts wrong answers."""
