"""A whole training run: settings, a fleet of simulated clients, the loop, and a folder that survives crashes.

Importing ``config``, ``metrics``, ``folder`` and ``summary`` needs no torch; ``fleet`` and ``runner`` do.
"""
