"""What runs and audits look like: tables and plots."""
