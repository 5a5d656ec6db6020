"""Questions to a spans database."""
