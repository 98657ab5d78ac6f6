"""Loaders: one module per data set, or per format of users' files."""
