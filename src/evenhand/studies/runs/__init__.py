"""Runs: trained from specs, kept in directories, looked at together."""
