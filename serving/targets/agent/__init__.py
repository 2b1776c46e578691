"""The node agent: reconciles this node's servers with the replicas' rows."""
