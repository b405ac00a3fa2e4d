"""Files beside a file of rollouts, as environments import them; names only."""

from nemo_gym.environment.files import aggregate_metrics_path_for, failures_path_for, materialized_path_for

__all__ = ["aggregate_metrics_path_for", "failures_path_for", "materialized_path_for"]
