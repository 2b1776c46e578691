"""One file for each rule: what it keeps from tick to tick, what it finds in a snapshot, and its commands. `table` lists them all."""
