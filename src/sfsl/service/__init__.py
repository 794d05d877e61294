"""A round as frames between a server and clients that are elsewhere, whatever carries them: HTTPS, Flower."""
