"""Outside systems that say who somebody is."""
