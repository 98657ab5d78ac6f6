"""Makes a codebook from all nodes: each sends sums of its columns, never a cell."""
