"""Files that a crash leaves whole, and locks that a crash releases."""
