"""The experiments of published papers: each one a spec, its published numbers, and what we got."""
