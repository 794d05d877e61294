"""Rounds of a simulated population in this process, on the real protocol."""
