"""The paper's claims about its policies, in our words."""

from __future__ import annotations

from typing import Final

from tocsin.lab.experiments.declaration import Claim
from tocsin.lab.experiments.kafka_admission import judge_admission, judge_delivery, judge_parameters

CLAIMS: Final = (
    Claim(
        "ends",
        "Without caching no record is a hit, with unlimited caching every one is",
        "Fig. 8",
        judge_admission.ends,
    ),
    Claim(
        "hit-rate-constant",
        "Each policy's hit rate is nearly the same on every benchmark",
        "Fig. 8",
        judge_admission.constant,
    ),
    Claim(
        "hit-rate-order",
        "The threshold policy has the lowest hit rate, then mean, then buffer",
        "Fig. 8",
        judge_admission.hit_order,
    ),
    Claim(
        "buffer-hits",
        "The buffer policy has the best hit rate of the three on every benchmark, around 0.8",
        "Fig. 8",
        judge_admission.buffer_hits,
    ),
    Claim(
        "hit-rates",
        "Hit rates are about 0.3 (threshold), 0.5 (mean) and 0.7 (buffer)",
        "Analysis",
        judge_admission.hit_rates,
    ),
    Claim(
        "unlimited-duplication",
        "Unlimited caching keeps 1.7 copies where 70 % is shared",
        "Analysis",
        judge_admission.unlimited_duplication,
    ),
    Claim(
        "duplication-high",
        "The three policies keep more copies per record than unlimited caching; threshold and mean close to 2",
        "Fig. 9",
        judge_admission.duplication_high,
    ),
    Claim(
        "follows-share",
        "The fewer records of a benchmark are shared, the fewer copies are kept",
        "Analysis of Fig. 9",
        judge_admission.follows_share,
    ),
    Claim(
        "fluctuates",
        "Duplication fluctuates up to 2,000 records, where it dips (throughput at 1,000), and is constant from there",
        "Fig. 9, 11",
        judge_admission.fluctuates,
    ),
    Claim(
        "shared-kept",
        "The buffer policy keeps most of the shared records, then mean, then threshold",
        "Analysis of Fig. 9",
        judge_admission.shared_kept,
    ),
    Claim(
        "latency-order",
        "Latency grows in the order unlimited, buffer, mean, threshold, no caching",
        "Fig. 10",
        judge_delivery.latency_order,
    ),
    Claim("throughput-order", "Throughput falls in the same order", "Fig. 11", judge_delivery.throughput_order),
    Claim(
        "throughput-far",
        "Unlimited caching has far more throughput than any other policy",
        "Fig. 11",
        judge_delivery.throughput_far,
    ),
    Claim(
        "hundredfold",
        "Without caching, latency is a hundred times that of unlimited caching",
        "Fig. 10",
        judge_delivery.hundredfold,
    ),
    Claim("gap-grows", "The gap between the two grows with the number of records", "Fig. 10", judge_delivery.grows),
    Claim(
        "threshold-best",
        "The threshold policy is fastest with μ = 0.8, λ = 0.2, and then with 0.3 and 0.1",
        "Fig. 12",
        judge_parameters.threshold_best,
    ),
    Claim(
        "threshold-worst",
        "It is slowest with μ = 0.8, λ = 0.8",
        "Analysis of Fig. 12",
        judge_parameters.threshold_worst,
    ),
    Claim(
        "threshold-rates",
        "A higher λ means fewer hits and a higher latency, a higher μ more hits and a lower one",
        "Analysis of Fig. 12",
        judge_parameters.threshold_rates,
    ),
    Claim(
        "tuning-mean",
        "The mean policy's latency falls as its batch grows, since the first batch is let in whole",
        "Fig. 13",
        judge_parameters.mean,
    ),
    Claim(
        "tuning-buffer",
        "The buffer policy with γ = 1 lets in everything",
        "Analysis of Fig. 14",
        judge_parameters.buffer_all,
    ),
    Claim("buffer-best", "It is fastest with (γ, α) = (1, 0)", "Fig. 14", judge_parameters.buffer_best),
    Claim(
        "buffer-local",
        "It is faster with (0.8, 0.2) than with the pairs beside it",
        "Fig. 14",
        judge_parameters.buffer_local,
    ),
    Claim(
        "buffer-flat",
        "Its latency does not vary much with γ and α",
        "Analysis of Fig. 14",
        judge_parameters.buffer_flat,
    ),
    Claim(
        "equal-value",
        "Hit rate × duplication is almost equal for the three policies",
        "Analysis",
        judge_admission.equal_value,
    ),
    Claim(
        "ranking",
        "Threshold is the best policy, then mean, then buffer: it keeps fewest records, and those most shared",
        "Conclusion",
        judge_admission.ranking,
    ),
)
