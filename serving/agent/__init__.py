"""The node agent: reconciles this node's servers with the deployments' rows."""
