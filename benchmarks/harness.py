"""Taking turns and summing up: the only statistics here.

A sample is a function that does the work once and says what it cost, in seconds or bytes. Contenders are sampled in
rounds, each once a round and in turning order, so whatever slows the machine slows all of them alike, and the ratio is
taken within the round.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Sample = Callable[[], float]

LEAST_FOR_SPREAD = 4


class Comparison(NamedTuple):
    """Two contenders over the same rounds.

    Attributes:
        ours: Median of our samples.
        theirs: Median of the baseline's samples.
        ratio: Median of the ratios taken round by round, ours divided by theirs.
        spread: Interquartile range of those ratios divided by their median; None below four rounds.
        rounds: How many rounds were measured.
    """

    ours: float
    theirs: float
    ratio: float
    spread: float | None
    rounds: int


def timed(operation: Callable[[], object]) -> float:
    """Runs ``operation`` once and gives the seconds it took."""
    start = time.perf_counter()
    operation()
    return time.perf_counter() - start


def spread(values: Sequence[float]) -> float | None:
    """Interquartile range divided by the median, or None for fewer than four values or a median of zero."""
    middle = statistics.median(values)
    if len(values) < LEAST_FOR_SPREAD or middle == 0:
        return None
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Comparison:
    """Sums up two equally long series whose n-th values were taken in the n-th round.

    Raises:
        ValueError: The series are empty, of different lengths, or a value of the baseline is not above zero.
    """
    if not ours or len(ours) != len(theirs):
        raise ValueError(f"series of {len(ours)} and {len(theirs)} samples cannot be paired")
    if min(theirs) <= 0:
        raise ValueError("a baseline's sample is not above zero, so it gives no ratio")
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    return Comparison(
        statistics.median(ours), statistics.median(theirs), statistics.median(ratios), spread(ratios), len(ratios)
    )


def power(points: Sequence[tuple[float, float]]) -> float:
    """The exponent of the power that fits points of size and cost best: the slope of a line through their logarithms.

    Raises:
        ValueError: Fewer than two sizes, or a size or cost that is not above zero.
    """
    if min(min(point) for point in points) <= 0:
        raise ValueError("a size or a cost is not above zero, so it grows with no power")
    xs, ys = ([math.log(point[axis]) for point in points] for axis in (0, 1))
    return statistics.linear_regression(xs, ys).slope


def rounds(
    samples: Mapping[str, Sample], *, seconds: float, least: int = 5, most: int = 400, warm_up: int = 2
) -> dict[str, list[float]]:
    """Samples every contender once a round until ``seconds`` have passed.

    Args:
        samples: What to call, by contender.
        seconds: Wall time after which no further round starts, warm-up and unmeasured preparation included.
        least: Rounds measured even when the time is over.
        most: Rounds after which to stop early.
        warm_up: Rounds before, thrown away.

    Returns:
        By contender, one value a round.
    """
    names = list(samples)
    series: dict[str, list[float]] = {name: [] for name in names}
    deadline = time.perf_counter() + seconds
    gc.collect()
    gc.freeze()  # what the suite itself holds is not scanned again at a contender's expense
    try:
        for count in range(-warm_up, most):
            if count >= least and time.perf_counter() > deadline:
                break
            shift = count % len(names)
            for name in names[shift:] + names[:shift]:
                value = samples[name]()
                if count >= 0:
                    series[name].append(value)
    finally:
        gc.unfreeze()
    return series
