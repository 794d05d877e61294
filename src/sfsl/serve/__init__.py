"""A deployment's server: its settings, its folder, and what it starts.

Importing ``config`` needs no torch; ``start`` does.
"""
