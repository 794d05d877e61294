"""Secure federated submodel learning."""

__version__ = "0.1.0"
