"""Federated data: reading samples, distributing them over clients, and describing who holds
what."""
