"""What runs and choices of privacy look like: tables and plots."""
