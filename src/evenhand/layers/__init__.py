"""Layers in their fastest form for a stack of clients."""
