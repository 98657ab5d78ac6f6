"""Specifications, run directories and tables."""
