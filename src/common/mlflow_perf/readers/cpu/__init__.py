"""How busy the CPUs are: the node's, and those the job may use."""
