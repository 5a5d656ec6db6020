"""The document and its parts: columns, metrics, series, summary."""
