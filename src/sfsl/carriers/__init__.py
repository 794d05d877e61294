"""Engines carry the messages of a round. ``local`` runs a whole cohort in this process."""
