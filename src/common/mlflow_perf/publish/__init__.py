"""Output of the job: journal, delivery to MLflow, notes, live curves, recovery."""
