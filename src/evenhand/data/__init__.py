"""Federated data: what clients hold, how it is read, dealt and described."""
