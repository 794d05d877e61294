"""Several schemes trained side by side on one device."""
