"""Training runs: settings, the round loop, evaluation, checkpoints and results."""
