"""Everything that Sluicegate needs, on one machine: stores, web, worker, agent, engine, control plane and gateway."""
