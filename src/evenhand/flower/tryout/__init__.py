"""A federation of real processes on one machine, to try an app out."""
