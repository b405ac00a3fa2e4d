"""What environments import to compute their figures; names only."""

from nemo_gym.environment.metrics import AggregateMetricsMixin
from nemo_gym.rollouts.passes import compute_pass_majority_metrics, compute_subset_metrics, highest_k_metrics

__all__ = [
    "AggregateMetricsMixin",
    "compute_pass_majority_metrics",
    "compute_subset_metrics",
    "highest_k_metrics",
]
