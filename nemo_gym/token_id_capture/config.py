"""Its settings; names only."""

from nemo_gym.model_server.written_elsewhere import (
    TokenIdCaptureConfig,
    TokenIdCaptureSettings,
    token_id_capture_config,
)

__all__ = ["TokenIdCaptureConfig", "TokenIdCaptureSettings", "token_id_capture_config"]
