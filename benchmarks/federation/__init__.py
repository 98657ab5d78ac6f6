"""Seconds of a round in a real federation, beside Flower's own FedAvg: `python -m
benchmarks.federation`."""
