"""Layers in the form that is fastest for a stack of clients."""
