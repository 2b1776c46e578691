"""How traffic moves: policies, evidence, decisions and the engine that applies them."""
