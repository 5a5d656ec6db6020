"""What every step of the ladder may use: clock, settings, JSON, URIs, text for people."""
