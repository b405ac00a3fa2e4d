"""Instant rollouts through agent, model and resources servers, capture on: memory is flat, and CPU has a bound.

The bounds on CPU are wide: what a machine that does other things besides charges for the same work is twice as much and
more. `python -m benchmarks.jobs` gives the figure itself.
"""

import pytest

from benchmarks.jobs import GROWTH, REPORT, measured


def check(figures, rollouts, settled, cpu_ms):
    assert figures.rollouts == rollouts
    assert set(figures.processes) >= {"job", "simple_agent", "vllm_model", "mcqa"}
    for name, process in figures.processes.items():
        assert process.growth(settled) < GROWTH, (name, process.sizes[:: max(1, len(process.sizes) // 20)])
    if "report" in figures.processes:  # it may be over before it is looked at
        assert figures.processes["report"].most < REPORT
    assert figures.cpu_ms < cpu_ms, {name: process.cpu_s for name, process in figures.processes.items()}


@pytest.mark.ci
def test_two_thousand():
    check(measured(2000), 2000, settled=500, cpu_ms=60)


@pytest.mark.nightly
def test_twenty_thousand():
    check(measured(20_000), 20_000, settled=2000, cpu_ms=40)
