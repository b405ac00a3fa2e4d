"""Its other recorders; names only."""

from nemo_gym.model_server.written_elsewhere import ExternalCaptureHandler, make_external_capture_handler

__all__ = ["ExternalCaptureHandler", "make_external_capture_handler"]
