"""Rounds over HTTPS: one server process, and clients anywhere."""
