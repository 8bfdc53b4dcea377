"""Whole conversations through compiled graphs: the time they take and the bytes they leave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from .agents import GraphOf, Turn, create_agent_graph, speak, state_graph, turns
from .contenders import PLAIN, Place
from .harness import power, timed
from .results import POWER, Result
from .sizes import data_bytes, key_bytes
from .suite import Bench, benchmark
from .targets import CONVERSATION, CREATE_AGENT, GROWTH, SIZE, STATE_GRAPH

SHAPES: dict[str, GraphOf] = {STATE_GRAPH: state_graph, CREATE_AGENT: create_agent_graph}
THREAD = "conversation"


class _Run:
    """One contender's conversation in progress."""

    def __init__(self, graph: object, place: Place) -> None:
        self.graph = graph
        self.place = place
        self.seconds = 0.0
        self.sizes: dict[int, int] = {}

    def speak(self, turn: Turn) -> None:
        self.seconds += timed(lambda: speak(self.graph, turn, THREAD))


@benchmark("conversation", sqlite=135, postgres=30, quick=True)
def conversations(bench: Bench) -> Iterator[Result]:
    """100 turns of both graph shapes, turn by turn in turns, and the disk at milestones on the way to 1,000."""
    small = bench.level == "full" and bench.backend == "postgres"  # SQLite has shown the long curves already
    both = 100 if small else bench.pick(4, 100, 300)
    ours_alone = 200 if small else bench.pick(8, 200, 1000)
    milestones = bench.pick((2, 4), (25, 50, 100), (25, 50, 100, 200, 300))
    milestones_alone = (200,) if small else bench.pick((8,), (200,), (500, 1000))
    wall_turns = bench.pick(4, 100, 100)
    for shape, graph_of in SHAPES.items():
        times: list[tuple[float, float]] = []
        for repeat in range(bench.pick(1, 2 if shape == CREATE_AGENT else 1, 2 if small else 4)):
            longest = repeat == 0  # sizes do not vary: once is enough
            with ExitStack() as stack:
                script = turns(ours_alone if longest else wall_turns)
                runs: list[_Run] = []
                for contender in (bench.ours, PLAIN[bench.backend]):
                    place = bench.place()
                    runs.append(_Run(graph_of(script, stack.enter_context(contender.opened(place))), place))
                stop = both if longest else wall_turns
                times.append(_together(runs, script[:stop], wall_turns, milestones if longest else ()))
                if longest:
                    _alone(runs[0], script[stop:], stop, milestones_alone)
                    sizes = [dict(run.sizes) for run in runs]
                    keys = 0 if bench.calibrate else key_bytes(runs[0].place)
            bench.discard(*(run.place for run in runs))
        ours, theirs = ([pair[one] for pair in times] for one in (0, 1))
        name = PLAIN[bench.backend].name
        yield bench.result(CONVERSATION, f"{shape}, {wall_turns} turns", name, "s", ours, theirs)
        yield from _sizes(bench, shape, name, sizes)
        ours_by_turns, theirs_by_turns = (sorted(one.items()) for one in sizes)
        yield from bench.order(SIZE, f"turns of {shape}", name, ours_by_turns, theirs_by_turns)
        far = [point for point in ours_by_turns if point[0] * 10 >= ours_by_turns[-1][0]]
        if ours_by_turns[-1][0] > both and len(far) > 2:
            case = f"{far[0][0]:,} to {far[-1][0]:,} turns of {shape}"
            yield bench.alone(f"order of {SIZE}", case, POWER, power(far))
        yield bench.alone("bytes of the key store", f"{shape}, one customer", "bytes", keys)


def _together(
    runs: Sequence[_Run], script: Sequence[Turn], wall_turns: int, milestones: Sequence[int]
) -> tuple[float, float]:
    """Speaks every turn to all; gives the seconds that ours and theirs took for the first ``wall_turns``."""
    taken = (0.0, 0.0)
    for number, turn in enumerate(script, 1):
        for run in runs if number % 2 else reversed(runs):
            run.speak(turn)
        if number in milestones:
            for run in runs:
                run.sizes[number] = data_bytes(run.place)
        if number == wall_turns:
            taken = (runs[0].seconds, runs[1].seconds)
    return taken


def _alone(run: _Run, script: Sequence[Turn], before: int, milestones: Sequence[int]) -> None:
    """Takes ours further than a stock saver's disk would bear."""
    for number, turn in enumerate(script, before + 1):
        run.speak(turn)
        if number in milestones:
            run.sizes[number] = data_bytes(run.place)


def _sizes(bench: Bench, shape: str, name: str, sizes: Sequence[dict[int, int]]) -> Iterator[Result]:
    ours, theirs = sizes
    for number in ours:
        case = f"{shape}, {number:,} turns"
        if number in theirs:
            yield bench.result(SIZE, case, name, "bytes", [ours[number]], [theirs[number]])
        else:
            yield bench.alone(SIZE, case, "bytes", ours[number])
    for double, single in ((200, 100), (1000, 500), (8, 4)):
        if double in ours and single in ours:
            case = shape if double == 200 else f"{shape}, {double:,} against {single:,}"
            baseline = f"shredsaver, {single:,} turns"
            yield bench.result(GROWTH, case, baseline, "bytes", [ours[double]], [ours[single]])
