"""A search for settings: many arms side by side on one device, of which the worse half goes at each rung."""
