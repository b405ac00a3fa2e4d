"""What an environment with a judge imports; names only."""

from nemo_gym.environment.judge import JudgeError, call_judge, judge_failsafe, reraise_judge_errors

__all__ = ["JudgeError", "call_judge", "judge_failsafe", "reraise_judge_errors"]
