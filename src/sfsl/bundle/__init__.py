"""A model to take away: weights, architecture, what rows are called, what it is worth, what was private."""
