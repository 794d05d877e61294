"""How much of the protocol's code is held by tests: small changes are made to it, one at a time, in a private
copy, and some test must fail for each."""
