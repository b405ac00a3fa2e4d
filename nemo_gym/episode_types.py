"""Identities of episodes and tasks that environments import; names only."""

from nemo_gym.environment.episodes import (
    BaseEpisodeRequest,
    BaseEpisodeResponse,
    EpisodeFailure,
    EpisodeId,
    MaterializedTask,
    TaskId,
    is_materialized_task_row,
)

__all__ = [
    "BaseEpisodeRequest",
    "BaseEpisodeResponse",
    "EpisodeFailure",
    "EpisodeId",
    "MaterializedTask",
    "TaskId",
    "is_materialized_task_row",
]
