"""What a GPU needs for a stack: steps captured as graphs, which lanes of clients replay side by side."""

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

# Steps in one graph, and how many fewer clients have graphs of their own, which take long if compiled.
STEPS_PER_GRAPH = 8
_SHRINK, _SHRINK_COMPILED = 0.8, 0.6
# The share of clients that have a lane of their own for having the most steps.
_LONGEST = 0.1


@dataclass(frozen=True)
class Lane:
    """Neighbours that a GPU trains on a stream of their own, from ``start`` on.

    Few clients have many more steps than the others: alone they leave most of a GPU idle, and beside the
    others they cost next to nothing. A library's working memory belongs to a stream, so a lane's graphs are
    captured where they are replayed.
    """

    start: int
    sizes: tuple[int, ...]
    number: Tensor
    stream: torch.cuda.Stream
    graphs: dict[int, torch.cuda.CUDAGraph] = field(default_factory=dict)

    def replay(self, steps: Sequence[int]) -> None:
        """Replay the lane's part; ``steps`` are those of all clients of the stack."""
        own = steps[self.start : self.start + self.sizes[0]]
        with torch.cuda.stream(self.stream):
            for begun in range(0, max(own, default=0), STEPS_PER_GRAPH):
                live = sum(one > begun for one in own)
                self.graphs[min(size for size in self.sizes if size >= live)].replay()


def lanes(clients: int, device: torch.device, compiled: bool) -> tuple[Lane, ...]:
    """Make a lane of those with the most steps, which nobody should have to wait for, and of the others."""
    longest = int(clients * _LONGEST) // 8 * 8  # kernels want their operands aligned
    shrink, count = (_SHRINK_COMPILED, 3) if compiled else (_SHRINK, 8)
    made = []
    for start, stop in [(0, longest), (longest, clients)] if longest else [(0, clients)]:
        sizes = tuple(math.ceil((stop - start) * shrink**power) for power in range(count))
        number = torch.zeros(1, dtype=torch.int64, device=device)
        stream = torch.cuda.Stream(device, priority=0 if start else -1)  # type: ignore[no-untyped-call]
        made.append(Lane(start, sizes, number, stream))
    return tuple(made)


def captured(step: Callable[[], None], beside: torch.cuda.Stream | None = None) -> torch.cuda.CUDAGraph:
    """Capture ``STEPS_PER_GRAPH`` steps as one graph, for a stream. A few are taken on the way."""
    beside = beside or torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):  # libraries choose their ways and take their memory
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    collecting = gc.isenabled()
    gc.disable()  # memory of earlier graphs, given back in the middle, would spoil this one
    try:
        with torch.cuda.graph(graph, stream=beside):
            for _ in range(STEPS_PER_GRAPH):
                step()
    finally:
        if collecting:
            gc.enable()
    return graph
