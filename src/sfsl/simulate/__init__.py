"""Simulated clients: their data, their chance, their faults, and rounds that need no protocol."""
