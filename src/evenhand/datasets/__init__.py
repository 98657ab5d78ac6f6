"""Data sets, as federations."""

from evenhand.datasets.digits import digits

DATASETS = {"digits": digits}

__all__ = ["DATASETS", "digits"]
