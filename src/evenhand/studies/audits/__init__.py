"""Audits of predictions that are there already."""
