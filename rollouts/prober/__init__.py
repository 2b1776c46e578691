"""The prober: asks live rollouts' servers what users asked, and what the golden set asks, and counts wrong answers."""
