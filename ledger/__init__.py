"""What happened and what is due: the append-only event log, leased jobs, named leases."""
