"""What production did, for people and for other systems: exported figures and where to read them."""
