"""What to run: specs and what they are made of."""
