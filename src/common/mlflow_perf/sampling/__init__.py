"""The sampler: asks the readers at each interval and collects their reports."""
