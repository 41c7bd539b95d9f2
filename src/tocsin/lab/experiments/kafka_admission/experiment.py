"""Declares the experiment `kafka-admission`: its parameters, sweeps and metrics.

The paper leaves loads and tunings open, so they are parameters with sweeps of their own.
"""

from __future__ import annotations

from typing import Any, Final

from tocsin.lab.experiments.declaration import (
    Axis,
    Experiment,
    ExperimentParameter,
    Metric,
    Plot,
    Sweep,
    along,
    claims_of,
)
from tocsin.lab.experiments.kafka_admission import judge_admission, judge_delivery, judge_parameters
from tocsin.lab.experiments.kafka_admission.model import model

_POLICIES: Final = ("none", "all", "threshold", "mean", "buffer")
_LOG_X: Final = {"log_x": True}
_LOG_Y: Final = {"log_y": True}
# Name, title, sweep, x, y, what the lines are, and logarithmic axes.
_PLOTS: Final[tuple[tuple[str, str, str, str, str, str | None, dict[str, Any]], ...]] = (
    ("hit-rate", "Hit rate by policy (Fig. 8)", "benchmarks", "records", "hit_rate", "policy", _LOG_X),
    ("duplication", "Duplication (Fig. 9)", "benchmarks", "records", "duplication", "policy", _LOG_X),
    ("latency", "Latency (Fig. 10)", "benchmarks", "records", "latency_s", "policy", {**_LOG_X, **_LOG_Y}),
    ("throughput", "Records per second until the last is received (Fig. 11 inverts the latency)", "benchmarks",
     "records", "throughput_per_s", "policy", _LOG_X),
    ("shared", "Hit rate by the share of shared records", "shared", "shared", "hit_rate", "policy", {}),
    ("tuning-threshold", "Threshold policy: latency by μ (Fig. 12)", "tuning-threshold", "fall", "latency_s", "rise",
     _LOG_Y),
    ("tuning-threshold-hits", "Threshold policy: hit rate by μ", "tuning-threshold", "fall", "hit_rate", "rise", {}),
    ("tuning-mean", "Mean policy: latency by batch (Fig. 13)", "tuning-mean", "batch", "latency_s", None, {}),
    ("tuning-buffer", "Buffer policy: latency by γ (Fig. 14)", "tuning-buffer", "last", "latency_s", "learns_first",
     {}),
    ("tuning-buffer-hits", "Buffer policy: hit rate by γ", "tuning-buffer", "last", "hit_rate", "learns_first", {}),
    ("load", "Latency by the time between records", "load", "publish_every_s", "latency_s", "policy", _LOG_Y),
)  # fmt: skip

EXPERIMENT = Experiment(
    name="kafka-admission",
    title="Admission policies over Kafka",
    about="Five policies that decide, record by record, whether a broker keeps a record in the logs of its consumers "
    "or leaves it to a database: what they keep, how often it is shared, and what a delivery takes. The policies are "
    "those of the live broker (`tocsin.rules.caching.admission`); Kafka, the database and the consumers are simulated.",
    source="Effect of Caching in a Content-Based Pub/Sub System over Kafka (CS237, UCI, 2021)",
    model=model,
    parameters=(
        ExperimentParameter("policy", "threshold", f"the admission policy: {', '.join(_POLICIES)}", among=_POLICIES),
        ExperimentParameter("records", 1_000, "records of a benchmark", least=1),
        ExperimentParameter(
            "shared", 0.7, "share of records that two consumers want; the others are for one", least=0, most=1
        ),
        ExperimentParameter(
            "rise",
            0.3,
            "threshold policy: λ, by which the threshold rises with a record that is let in",
            least=0,
            most=1e9,
        ),
        ExperimentParameter(
            "fall", 0.2, "threshold policy: μ, by which it falls with one that is turned away", least=0, most=1e9
        ),
        ExperimentParameter("batch", 50, "mean policy: records whose mean is the next threshold", least=1),
        ExperimentParameter("last", 0.8, "buffer policy: γ, the weight of the last record", least=0, most=1e9),
        ExperimentParameter("before", 0.2, "buffer policy: α, the weight of the one before", least=0, most=1e9),
        ExperimentParameter(
            "learns_first", False, "buffer policy: does a record move the threshold before it is judged by it"
        ),
        ExperimentParameter("publish_every_s", 0.002, "mean time between records", least=1e-6, most=1e6),
        ExperimentParameter("broker_s", 0.0005, "time of the broker for a record", least=0, most=1e6),
        ExperimentParameter("append_s", 0.0001, "time to append a copy to a consumer's log", least=0, most=1e6),
        ExperimentParameter("database_write_s", 0.001, "time of the database to write a record", least=0, most=1e6),
        ExperimentParameter(
            "database_read_s", 0.002, "time of the database to read one for one consumer", least=0, most=1e6
        ),
        ExperimentParameter("poll_s", 0.01, "how often consumers poll", least=1e-6, most=1e6),
    ),
    sweeps=(
        Sweep(
            "benchmarks",
            "Every policy on benchmarks of growing size.",
            (along("policy", _POLICIES), along("records", (500, 1_000, 2_000, 5_000, 10_000), quick=(500, 2_000))),
        ),
        Sweep(
            "shared",
            "How many records are shared, which the paper does not say but for one example.",
            (along("policy", _POLICIES[1:]), along("shared", (0.3, 0.5, 0.7, 0.9), quick=(0.5, 0.7))),
        ),
        Sweep(
            "tuning-threshold",
            "The paper's pairs (μ, λ), and (0.8, 0.8), which its prose calls the worst and its list lacks.",
            (
                Axis(
                    ("fall", "rise"),
                    ((0.2, 0.3), (0.1, 0.3), (0.5, 0.5), (0.3, 0.1), (0.3, 0.2), (0.2, 0.8), (0.8, 0.2), (0.8, 0.8)),
                ),
            ),
            fixed={"policy": "threshold"},
        ),
        Sweep(
            "tuning-mean",
            "The paper's batch sizes.",
            (along("batch", (20, 30, 50, 100, 200, 500), quick=(20, 100, 500)),),
            fixed={"policy": "mean"},
        ),
        Sweep(
            "tuning-buffer",
            "The paper's pairs (γ, α), deciding before and after learning.",
            (
                along("learns_first", (False, True)),
                Axis(("last", "before"), ((1.0, 0.0), (0.9, 0.1), (0.8, 0.2), (0.7, 0.3), (0.6, 0.4), (0.5, 0.5))),
            ),
            fixed={"policy": "buffer"},
        ),
        Sweep(
            "load",
            "How fast records come. A database that must write and read them all keeps up with one in 4.4 ms.",
            (
                along("policy", ("all", "none")),
                along("publish_every_s", (0.001, 0.002, 0.004, 0.006, 0.01, 0.02), quick=(0.002, 0.006, 0.02)),
            ),
        ),
        Sweep(
            "light-load",
            "No caching and unlimited caching where the database keeps up.",
            (along("policy", ("all", "none")), along("records", (500, 2_000, 10_000), quick=(500, 2_000))),
            fixed={"publish_every_s": 0.01},
        ),
    ),
    metrics=(
        Metric("hit_rate", "", "share of records let in"),
        Metric("duplication", "", "copies kept per record let in; 1 where none was"),
        Metric("value", "", "hit rate × duplication: copies kept per record"),
        Metric("latency_s", "s", "mean time from publication to reception, over all receptions"),
        Metric("throughput_per_s", "1/s", "records divided by the time until the last was received"),
    ),
    plots=tuple(Plot(name, title, sweep, x, y, by, **scales) for name, title, sweep, x, y, by, scales in _PLOTS),
    claims=claims_of(judge_admission, judge_delivery, judge_parameters),
    replications=20,
    quick_replications=6,
    notes="The paper does not say with which tuning its comparison of the policies was made. Here it is the first pair "
    "of its list for the threshold policy (μ = 0.2, λ = 0.3), a batch of 50, and (γ, α) = (0.8, 0.2). Latencies and "
    "throughput are those of the simulated servers: their order can be compared with the paper's, their size cannot. "
    "The paper has six benchmarks and names the sizes of five; these five are run here.",
)
