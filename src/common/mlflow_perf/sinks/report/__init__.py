"""What a report shows, as plain data: built here, rendered by `sinks.html`."""
