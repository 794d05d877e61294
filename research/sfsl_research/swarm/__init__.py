"""Many clients of one process against a real server, with faults by plan."""
