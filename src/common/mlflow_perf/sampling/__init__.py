"""The sampler: asks the readers once per interval and collects their reports."""
