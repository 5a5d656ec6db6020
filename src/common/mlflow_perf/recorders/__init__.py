"""What code of the job records: operations and transfers, gathered from all its processes."""
