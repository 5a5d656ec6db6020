"""Importers of spans: one small file per kind of source."""
