"""A federation of real processes on one machine, for trying out an app."""
