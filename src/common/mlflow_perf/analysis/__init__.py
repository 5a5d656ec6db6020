"""What the figures mean: verdict, right size, comparison, gate, workflow.

Works on documents and summaries; prints, logs and renders nothing.
"""
