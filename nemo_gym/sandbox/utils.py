"""What environments with sandboxes share; names only."""

from nemo_gym.environment.sandbox.settings import CPU_CAP_ENV_VARS, cpu_cap_env, rewrite_image

__all__ = [
    "CPU_CAP_ENV_VARS",
    "cpu_cap_env",
    "rewrite_image",
]
