"""Checks the engine against theory: queues whose mean waiting time is known exactly.

Every other experiment rests on the engine and the network, so these are judged like the claim of a paper: within a
stated distance, or not.
"""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.lab.engine.engine import SimulationEngine
from tocsin.lab.engine.network import LinkSettings, SimulatedLink
from tocsin.lab.experiments.comparisons import all_within, verdict
from tocsin.lab.experiments.declaration import (
    Axis,
    Claim,
    Experiment,
    ExperimentParameter,
    Judgement,
    Metric,
    Plot,
    Run,
    Sweep,
    along,
)
from tocsin.lab.experiments.results import RunResults

_SERVICE_S = 1.0


def model(run: Run) -> Mapping[str, float]:
    """Sends messages at random times over one link. A service time is a size in bytes, at one byte per second."""
    engine = SimulationEngine(run.seed, trace=run.trace)
    arrivals, sizes = engine.streams.of("arrivals"), engine.streams.of("sizes")
    link = SimulatedLink(LinkSettings(latency_s=0.0, bandwidth_bytes_per_s=1.0))
    load, law = run.number("load"), run.text("service")
    customers, warm_up = run.whole("customers"), run.whole("warm_up")
    arrived = 0
    warm_waited_s = 0.0

    def arrive() -> None:
        nonlocal arrived, warm_waited_s
        size = _SERVICE_S if law == "constant" else sizes.exponential(_SERVICE_S)
        left_s = link.arrival_s(engine.now_s, size)
        engine.note("arrived", customer=arrived, leaves_s=left_s)
        arrived += 1
        if arrived == warm_up:
            warm_waited_s = link.waited_s
        if arrived < warm_up + customers:
            engine.after(arrivals.exponential(_SERVICE_S / load), arrive)

    engine.at(arrivals.exponential(_SERVICE_S / load), arrive)
    engine.run()
    wait_s = (link.waited_s - warm_waited_s) / customers
    expected_s = _theory_s(law, load)
    return {"wait_s": wait_s, "theory_s": expected_s, "ratio": wait_s / expected_s}


def _theory_s(law: str, load: float) -> float:
    """The formula of Pollaczek and Khinchine for the mean wait before service; a constant service time halves it."""
    return load * _SERVICE_S / (1 - load) * (0.5 if law == "constant" else 1.0)


# A run begins empty and is finite, so at high load its mean is a little below theory, whatever the number of runs.
_WITHIN = 0.05
# Runs so short that an interval is wider than this have a larger bias, and say nothing at any load.
_WIDEST = 0.15


def _agrees(law: str) -> Claim:
    def judge(results: RunResults) -> Judgement:
        ratios = {
            load: results.mean("ratio", "load", service=law, load=load) for load in results.points("load", "load")
        }
        figures = ", ".join(f"load {load}: {ratio}" for load, ratio in ratios.items())
        wrong = [str(load) for load, ratio in ratios.items() if all_within([ratio], 1 - _WITHIN, 1 + _WITHIN) is False]
        against = f"more than {_WITHIN:.0%} from theory at load {', '.join(wrong)}"
        is_too_short = any(ratio.half_width > _WIDEST for ratio in ratios.values())
        return verdict(
            None if is_too_short else all_within(ratios.values(), 1 - _WITHIN, 1 + _WITHIN), figures, against
        )

    return Claim(
        f"{law}-service", f"With {law} service times, the simulated mean wait is that of theory", "theory", judge
    )


EXPERIMENT = Experiment(
    name="queues",
    title="Queues against theory",
    about="One link as a server with Poisson arrivals: the mean waiting time that the engine and the network model "
    "give, divided by what the formula of Pollaczek and Khinchine gives. Everything else in the lab rests on this.",
    source="queueing theory (M/M/1 and M/D/1)",
    model=model,
    parameters=(
        ExperimentParameter(
            "service",
            "exponential",
            "the law of service times: exponential or constant",
            among=("exponential", "constant"),
        ),
        ExperimentParameter("load", 0.5, "arrivals per service time", least=0.001, most=0.999),
        ExperimentParameter("customers", 200_000, "customers counted in a run", quick=20_000, least=1),
        ExperimentParameter("warm_up", 2_000, "customers before those that are counted", least=0),
    ),
    sweeps=(
        Sweep(
            "load",
            "The wait at several loads; `ratio` is 1 where simulation and theory agree.",
            (along("service", ("exponential", "constant")), Axis(("load",), ((0.3,), (0.5,), (0.7,), (0.8,)))),
        ),
    ),
    metrics=(
        Metric("wait_s", "s", "mean time before service begins"),
        Metric("theory_s", "s", "what theory says it is"),
        Metric("ratio", "", "simulated divided by theory"),
    ),
    plots=(Plot("ratio", "Simulated wait divided by theory", "load", x="load", y="ratio", by="service"),),
    claims=(_agrees("exponential"), _agrees("constant")),
    replications=10,
    quick_replications=20,
)
