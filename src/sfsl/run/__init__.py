"""A whole training run: settings, a fleet of simulated clients, the loop, and a folder that survives crashes.

Importing ``folder``, ``load`` and ``summary`` needs no torch; ``fleet`` and ``runner`` do.
"""
