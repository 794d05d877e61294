"""Rounds over a Flower federation: frames through its Grid, which Flower does not look into."""
