"""A codebook from all nodes together: each sends sums of its columns, never a cell."""
