"""MLflow's side: clients, runs, batches, and reading performance data back."""
