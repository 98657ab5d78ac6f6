"""How fast evenhand is, beside other simulators and a plain PyTorch loop: see ``python -m
benchmarks.speed --help``."""
