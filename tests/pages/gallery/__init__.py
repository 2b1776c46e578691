"""A company at work, for pictures and for eyes: models, people and machines with histories that our own engine and judges wrote."""
