"""Who acts: people and tokens, the teams they belong to, and what each role may do."""
