"""The benchmark: every method, tuned alike, on a fixed suite of federations.

A *unit* is one method on one federation. Its outcome is a *record*, a line of JSON from which all
numbers follow; records of the suite come with the package.
"""
