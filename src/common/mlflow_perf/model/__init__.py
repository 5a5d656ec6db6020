"""The document and what it is made of: columns, metrics, series, summary."""
