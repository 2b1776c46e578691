"""One file for each rule: its state over ticks, its findings in a snapshot, and its commands. `table` lists all rules."""
