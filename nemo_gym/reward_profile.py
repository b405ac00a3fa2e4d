"""What environments import to compute their figures; names only."""

from nemo_gym.environment.metrics import AggregateMetricsMixin, compute_aggregate_metrics
from nemo_gym.environment.profiler import RewardProfiler
from nemo_gym.rollouts.passes import (
    add_avg_sample_std_dev,
    compute_pass_majority_metrics,
    compute_subset_metrics,
    highest_k_metrics,
)

__all__ = [
    "AggregateMetricsMixin",
    "RewardProfiler",
    "add_avg_sample_std_dev",
    "compute_aggregate_metrics",
    "compute_pass_majority_metrics",
    "compute_subset_metrics",
    "highest_k_metrics",
]
