"""What the paper claims of its policies, in our words."""

from __future__ import annotations

from typing import Final

from tocsin.lab.experiments.declaration import Claim
from tocsin.lab.experiments.kafka_admission import delivering, keeping, tuning

CLAIMS: Final = (
    Claim("ends", "Without caching no record is a hit, with unlimited caching every one is", "Fig. 8", keeping.ends),
    Claim(
        "hit-rate-constant", "Each policy's hit rate is nearly the same on every benchmark", "Fig. 8", keeping.constant
    ),
    Claim(
        "hit-rate-order",
        "The threshold policy has the lowest hit rate, then mean, then buffer",
        "Fig. 8",
        keeping.hit_order,
    ),
    Claim(
        "buffer-hits",
        "The buffer policy has the best hit rate of the three on every benchmark, around 0.8",
        "Fig. 8",
        keeping.buffer_hits,
    ),
    Claim(
        "hit-rates", "Hit rates are about 0.3 (threshold), 0.5 (mean) and 0.7 (buffer)", "Analysis", keeping.hit_rates
    ),
    Claim(
        "unlimited-duplication",
        "Unlimited caching keeps 1.7 copies where 70 % is shared",
        "Analysis",
        keeping.unlimited_duplication,
    ),
    Claim(
        "duplication-high",
        "The three policies keep more copies per record than unlimited caching; threshold and mean close to 2",
        "Fig. 9",
        keeping.duplication_high,
    ),
    Claim(
        "follows-share",
        "The fewer records of a benchmark are shared, the fewer copies are kept",
        "Analysis of Fig. 9",
        keeping.follows_share,
    ),
    Claim(
        "fluctuates",
        "Duplication fluctuates up to 2,000 records, where it dips (throughput at 1,000), and is constant from there",
        "Fig. 9, 11",
        keeping.fluctuates,
    ),
    Claim(
        "shared-kept",
        "The buffer policy keeps most of the shared records, then mean, then threshold",
        "Analysis of Fig. 9",
        keeping.shared_kept,
    ),
    Claim(
        "latency-order",
        "Latency grows in the order unlimited, buffer, mean, threshold, no caching",
        "Fig. 10",
        delivering.latency_order,
    ),
    Claim("throughput-order", "Throughput falls in the same order", "Fig. 11", delivering.throughput_order),
    Claim(
        "throughput-far",
        "Unlimited caching has far more throughput than any other policy",
        "Fig. 11",
        delivering.throughput_far,
    ),
    Claim(
        "hundredfold",
        "Without caching, latency is a hundred times that of unlimited caching",
        "Fig. 10",
        delivering.hundredfold,
    ),
    Claim("gap-grows", "The gap between the two grows with the number of records", "Fig. 10", delivering.grows),
    Claim(
        "threshold-best",
        "The threshold policy is fastest with μ = 0.8, λ = 0.2, and then with 0.3 and 0.1",
        "Fig. 12",
        tuning.threshold_best,
    ),
    Claim("threshold-worst", "It is slowest with μ = 0.8, λ = 0.8", "Analysis of Fig. 12", tuning.threshold_worst),
    Claim(
        "threshold-rates",
        "A higher λ means fewer hits and a higher latency, a higher μ more hits and a lower one",
        "Analysis of Fig. 12",
        tuning.threshold_rates,
    ),
    Claim(
        "tuning-mean",
        "The mean policy's latency falls as its batch grows, since the first batch is let in whole",
        "Fig. 13",
        tuning.mean,
    ),
    Claim("tuning-buffer", "The buffer policy with γ = 1 lets in everything", "Analysis of Fig. 14", tuning.buffer_all),
    Claim("buffer-best", "It is fastest with (γ, α) = (1, 0)", "Fig. 14", tuning.buffer_best),
    Claim("buffer-local", "It is faster with (0.8, 0.2) than with the pairs beside it", "Fig. 14", tuning.buffer_local),
    Claim("buffer-flat", "Its latency does not vary much with γ and α", "Analysis of Fig. 14", tuning.buffer_flat),
    Claim(
        "equal-value", "Hit rate × duplication is almost equal for the three policies", "Analysis", keeping.equal_value
    ),
    Claim(
        "ranking",
        "Threshold is the best policy, then mean, then buffer: it keeps fewest records, and those most shared",
        "Conclusion",
        keeping.ranking,
    ),
)
