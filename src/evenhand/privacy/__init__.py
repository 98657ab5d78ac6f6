"""Differential privacy: what a run's releases tell about one client or one sample."""
