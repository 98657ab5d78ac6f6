"""Writes the files of a new Flower app."""
