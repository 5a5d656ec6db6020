"""report() and the recording behind it."""
