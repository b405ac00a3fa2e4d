"""Cases that a verifier is held to, as environments import them; names only."""

from nemo_gym.environment.fixture import (
    VerifierFixture,
    VerifierFixtureCase,
    VerifierFixtureError,
    VerifierFixtureResult,
    exercise_verifier_fixture,
    load_verifier_fixture,
)

__all__ = [
    "VerifierFixture",
    "VerifierFixtureCase",
    "VerifierFixtureError",
    "VerifierFixtureResult",
    "exercise_verifier_fixture",
    "load_verifier_fixture",
]
