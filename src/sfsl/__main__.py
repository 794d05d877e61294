"""``python -m sfsl`` is ``sfsl``."""

from sfsl.cli import main

main()
