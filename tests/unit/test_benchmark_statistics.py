"""The benchmark suite's statistics: what is paired, what is left out, and what a whole document is."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import page
from benchmarks.harness import compare, power, rounds, spread
from benchmarks.results import POWER, Result, check, document
from benchmarks.suite import Bench, Benchmark, TookTooLongError, limited
from benchmarks.targets import TARGETS
from benchmarks.workload import message


def test_ratio_is_taken_round_by_round() -> None:
    # The machine was ten times slower in the second round: the ratio of medians would say 1.0, the pairs say 0.5.
    found = compare([1.0, 10.0, 1.0, 10.0, 2.0], [2.0, 20.0, 2.0, 20.0, 4.0])
    assert found.ratio == 0.5
    assert (found.ours, found.theirs, found.rounds) == (2.0, 4.0, 5)
    assert found.spread == 0


def test_spread_is_interquartile_range_over_median() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert spread([1.0, 2.0, 3.0]) is None
    assert spread([0.0, 0.0, 0.0, 0.0]) is None


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [0.0])])
def test_series_that_cannot_be_paired(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match=r"paired|above zero"):
        compare(ours, theirs)


def test_contenders_take_turns_and_the_warm_up_is_thrown_away() -> None:
    calls: list[str] = []

    def sample(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    series = rounds({"a": lambda: sample("a"), "b": lambda: sample("b")}, seconds=0, least=4, warm_up=2)
    assert len(calls) == 12
    assert [calls.count(name) for name in "ab"] == [6, 6]
    assert all(set(calls[start : start + 2]) == {"a", "b"} for start in range(0, 12, 2))
    assert {calls[start] for start in range(0, 12, 2)} == {"a", "b"}  # neither is always first
    assert {name: len(values) for name, values in series.items()} == {"a": 4, "b": 4}
    assert min(min(values) for values in series.values()) > 4  # the first two rounds are not in it


def test_rounds_stop_at_the_most() -> None:
    assert len(rounds({"a": lambda: 1.0}, seconds=60, most=7)["a"]) == 7


GOOD = Result("superstep write", "1 message", "sqlite", "SqliteSaver", 1.0, 2.0, "ms", 0.5, 0.1, 1.1)


def test_a_whole_document_passes_and_comes_back() -> None:
    data = document({}, {}, [GOOD, replace(GOOD, case="2", baseline=None, theirs=None, ratio=None, target=None)])
    check(json.loads(json.dumps(data)))


@pytest.mark.parametrize(
    "broken",
    [
        replace(GOOD, ours=float("nan")),
        replace(GOOD, ratio=-1.0),
        replace(GOOD, theirs=None),
        replace(GOOD, figure=""),
    ],
)
def test_a_broken_result_is_refused(broken: Result) -> None:
    with pytest.raises(ValueError, match="result 0"):
        check(document({}, {}, [broken]))


def test_a_figure_measured_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        check(document({}, {}, [GOOD, GOOD]))


def test_a_missing_key_is_refused() -> None:
    data = document({}, {}, [GOOD])
    del data["results"][0]["spread"]
    with pytest.raises(ValueError, match="spread"):
        check(data)


@pytest.mark.parametrize(("ratio", "met"), [(1.1, True), (1.11, False)])
def test_target_bounds_the_ratio(ratio: float, met: bool) -> None:
    assert replace(GOOD, ratio=ratio).met is met


def test_target_bounds_ours_where_nothing_is_compared() -> None:
    alone = replace(GOOD, baseline=None, theirs=None, ratio=None, target=10.0)
    assert replace(alone, ours=10.0).met is True
    assert replace(alone, ours=11.0).met is False
    assert replace(alone, target=None).met is None


def test_targets_are_upper_bounds_above_zero() -> None:
    assert len(TARGETS) == 23
    assert min(TARGETS.values()) > 0


def test_messages_are_about_700_bytes_and_repeatable() -> None:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    sizes = [len(JsonPlusSerializer().dumps_typed(message(number))[1]) for number in range(20)]
    assert 630 < min(sizes) <= max(sizes) < 770
    assert message(3) == message(3)


def test_a_page_gets_its_figures_and_nothing_else_changes(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    marks = "".join(f"<!-- {name} -->\nold\n<!-- end of {name} -->\n" for name in page.BLOCKS)
    file.write_text(f"before\n{marks}after\n", encoding="utf-8")
    for _ in range(2):  # filling again replaces what was filled
        page.fill(
            file, {"level": "quick"}, {"python": "3"}, [replace(GOOD, ratio=1.2), replace(GOOD, case="x", target=None)]
        )
    text = file.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.count("| superstep write |") == 2
    assert "0 of 1 targets" in text
    assert "superstep write, 1 message: 1.2 against SqliteSaver, not 1.1" in text


def test_a_page_without_its_marks_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("<!-- setting -->", encoding="utf-8")
    with pytest.raises(ValueError, match="setting"):
        page.fill(file, {}, {}, [])


def test_the_documentation_has_the_marks(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(
        (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8"), encoding="utf-8"
    )
    page.fill(file, {}, {}, [GOOD])


def test_power_is_the_slope_between_logarithms() -> None:
    assert power([(10, 3.0), (100, 300.0), (1000, 30_000.0)]) == pytest.approx(2)
    assert power([(10, 5.0), (100, 5.0)]) == pytest.approx(0)
    with pytest.raises(ValueError, match="above zero"):
        power([(10, 0.0), (100, 5.0)])


def test_an_order_is_told_over_the_upper_sizes_that_both_have(tmp_path: Path) -> None:
    bench = Bench("full", "sqlite", tmp_path, None)
    ours = [(1, 9.0), (100, 1.0), (1000, 1.0), (3000, 1.0), (9000, 50.0)]
    theirs = [(1, 9.0), (100, 1.0), (1000, 10.0), (3000, 30.0)]
    (found,) = bench.order("cost", "messages", "stock", ours, theirs)
    assert (found.figure, found.case, found.unit) == ("order of cost", "1,000 to 3,000 messages", POWER)
    assert (found.ours, found.theirs) == (pytest.approx(0), pytest.approx(1))
    check(document({}, {}, [replace(found, ours=-0.01, ratio=-0.01)]))
    assert list(bench.order("cost", "messages", "stock", ours[:1], theirs[:1])) == []


def test_what_takes_too_long_is_stopped() -> None:
    def forever() -> None:
        end = time.monotonic() + 60
        with limited(0.01):
            while time.monotonic() < end:
                pass

    with pytest.raises(TookTooLongError, match="stopped after"):
        forever()
    with pytest.raises(TookTooLongError, match="left out"), limited(0):
        raise AssertionError
    with limited(60):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_benchmark_that_fails_leaves_what_the_others_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def good(_: Bench) -> Iterator[Result]:
        yield replace(GOOD, case="2 messages")

    def half(_: Bench) -> Iterator[Result]:
        yield GOOD
        raise RuntimeError("no more")

    good.__module__ = half.__module__ = command.MODULES[0].__name__
    both = [Benchmark(one.__name__, one, {"sqlite": 1.0}, True, False) for one in (half, good)]
    monkeypatch.setattr(command, "REGISTER", both)
    file = tmp_path / "results.json"
    options = ["--backend", "sqlite", "--only", ".", "--directory", str(tmp_path), "--json", str(file)]
    assert command.main(options) == 1
    data = json.loads(file.read_text())
    check(data)
    assert [row["case"] for row in data["results"]] == ["1 message", "2 messages"]
    assert data["failures"] == [{"benchmark": "half", "backend": "sqlite", "error": "RuntimeError: no more"}]
    assert "FAILED sqlite: half: RuntimeError: no more" in capsys.readouterr().err
    monkeypatch.setattr(command, "REGISTER", both[1:])
    assert command.main(options) == 0
    assert "failures" not in json.loads(file.read_text())
