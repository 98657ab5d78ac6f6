"""Doctests: what needs Flower is left out where it is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["evenhand/flower/*"]
