"""Sessions that a caller opens under an id of its own, held to their contract; names only."""

from nemo_gym.environment.conformance import check_resources_session_contract

__all__ = ["check_resources_session_contract"]
