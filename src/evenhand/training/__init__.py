"""How a run is trained."""
