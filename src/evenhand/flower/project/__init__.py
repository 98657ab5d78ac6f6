"""A new Flower project: its files, and the codebook that makes tables alike."""
