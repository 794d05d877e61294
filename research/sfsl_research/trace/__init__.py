"""A trace of one round: which files of ``sfsl`` it touches, and which of them call which."""
