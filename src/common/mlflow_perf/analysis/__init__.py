"""What the figures mean: verdict, right size, comparison, gate, workflow."""
