"""The capture of tokens, as model servers of NeMo Gym import it; names only."""

from nemo_gym.model_server.written_elsewhere import current_capture_context

__all__ = ["current_capture_context"]
