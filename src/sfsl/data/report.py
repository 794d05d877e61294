"""What a loader had to leave out, and why: bad data is counted and shown, it never stops a run."""

from dataclasses import dataclass, field


@dataclass
class LoadReport:
    """``problems`` counts what was wrong by kind; ``examples`` keeps the first of each kind.

    A problem in one line does not always cost a sample: a bad id in a history only shortens it.
    """

    source: str
    lines: int = 0
    samples: int = 0
    problems: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, problem: str, example: str, count: int = 1) -> None:
        self.problems[problem] = self.problems.get(problem, 0) + count
        self.examples.setdefault(problem, example)

    @property
    def first(self) -> str:
        """The first problem met, in words."""
        return next(iter(self.examples.values()), "no problem was found")

    def __str__(self) -> str:
        head = f"{self.source}: {self.samples:,} samples from {self.lines:,} lines"
        kinds = (f"{count:,} x {kind} ({self.examples[kind]})" for kind, count in self.problems.items())
        return "; ".join([head, *kinds])
