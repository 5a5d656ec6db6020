"""Judgements on the figures: verdict, right size, comparison, gate, workflow."""
