"""Files that deploy a federation with containers, and what runs inside them."""
