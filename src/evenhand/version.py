"""The version, in its only place; pyproject.toml reads it from here."""

__version__ = "0.1.0"
