"""Readers of the CPUs: the node's, and the share of them that the job owns."""
