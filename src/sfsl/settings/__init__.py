"""Settings: each is declared, checked and described here, once, and handed down as values."""
