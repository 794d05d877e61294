"""Rounds whose clients live on the workers of a Ray cluster. Nothing else in this package imports ray."""
