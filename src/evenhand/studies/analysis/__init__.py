"""What runs say: numbers with intervals, gains and losses, gaps, a choice, sentences."""
