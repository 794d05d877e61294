"""A deployment's server: what it starts, and its certificate on loopback."""
