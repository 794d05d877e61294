"""Rounds whose clients live on the workers of a Ray cluster. Only this package and the trace import ray."""
