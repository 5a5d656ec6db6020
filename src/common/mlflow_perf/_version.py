"""The version, in one place: setup.py, the package and the tag on each run read it here."""

__version__ = "0.2.0"
