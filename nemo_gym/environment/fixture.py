"""Cases that every verifier is held to, from a JSONL file beside it: a full reward, none, and what it must refuse.

A case has a `name`, a `kind` (full_reward, zero_reward, malformed, determinism), a `request`, and what is expected: a
reward, or words of the error. Each is run on a fresh server, without a network.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Kind = Literal["full_reward", "zero_reward", "malformed", "determinism"]
Invocation = Callable[[Any, Any], Any | Awaitable[Any]]


class VerifierFixtureError(ValueError):
    """The file is no fixture, or the verifier does otherwise than it says."""


class VerifierFixture(Struct, frozen=True):
    """Attributes:
    invoke: how a request is put to a server; `server.verify(request)` unless given.
    reseed: prepares a server for a request whose reward depends on a seed.
    """

    server_factory: Callable[[], Any]
    request_model: type[BaseModel]
    cases_path: str | Path
    invoke: Invocation | None = None
    reseed: Invocation | None = None


class VerifierFixtureCase(BaseModel):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    name: str = Field(min_length=1)
    kind: Kind
    request: dict[str, Any]
    expected_reward: Annotated[float, Field(strict=True, allow_inf_nan=False)] | None = None
    expected_error: str | None = None

    @model_validator(mode="after")
    def _one_expectation(self) -> VerifierFixtureCase:
        refuses = self.kind == "malformed"
        if bool(self.expected_error) != refuses or (self.expected_reward is None) != refuses:
            wanted = "expected_error and no expected_reward" if refuses else "expected_reward and no expected_error"
            raise ValueError(f"a {self.kind} case has {wanted}")
        return self


class VerifierFixtureResult(Struct, frozen=True):
    name: str
    kind: Kind
    observed_rewards: tuple[float, ...] = ()


def load_verifier_fixture(path: str | Path) -> list[VerifierFixtureCase]:
    """The cases of a file. Raises VerifierFixtureError that names the line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise VerifierFixtureError(f"{path} cannot be read: {error}") from error
    cases = []
    for number, line in enumerate(lines, 1):
        try:
            cases += [VerifierFixtureCase.model_validate(json.loads(line))] if line.strip() else []
        except ValidationError as error:
            raise VerifierFixtureError(f"{path}:{number}: {error.errors(include_url=False)[0]['msg']}") from error
        except ValueError as error:
            raise VerifierFixtureError(f"{path}:{number}: not JSON: {error}") from error
    if not cases:
        raise VerifierFixtureError(f"{path} has no cases")
    return cases


async def exercise_verifier_fixture(
    fixture: VerifierFixture,
    *,
    reward_range: Sequence[float],
    higher_is_better: bool = True,
    determinism: str | Enum,
) -> tuple[VerifierFixtureResult, ...]:
    """Runs the cases. Raises VerifierFixtureError for the first that does not hold.

    Args:
        reward_range: the least and the greatest reward.
        determinism: `seeded`, `stochastic` or `unknown`; what is seeded must give the same reward again.
    """
    low, high = _range(reward_range)
    seeded = _determinism(determinism)
    cases = load_verifier_fixture(fixture.cases_path)
    wanted = {"full_reward", "zero_reward", "malformed"} | ({"determinism"} if seeded else set())
    if missing := wanted - {case.kind for case in cases}:
        raise VerifierFixtureError(f"{fixture.cases_path} has no case of the kind {', '.join(sorted(missing))}")
    ends = {"full_reward": high if higher_is_better else low, "zero_reward": low if higher_is_better else high}
    results = []
    for case in cases:
        if case.kind == "malformed":
            await _refused(fixture, case)
            results.append(VerifierFixtureResult(case.name, case.kind))
        elif case.kind != "determinism" or seeded:
            rewards = [await _reward(fixture, case) for _ in range(1 + (case.kind == "determinism"))]
            for reward in rewards:
                _expect(case, reward, ends.get(case.kind, case.expected_reward), low, high)
            results.append(VerifierFixtureResult(case.name, case.kind, tuple(rewards)))
    return tuple(results)


def _range(said: Sequence[float]) -> tuple[float, float]:
    if len(said) != 2 or not all(_is_number(end) for end in said) or said[0] > said[1]:
        raise VerifierFixtureError(f"reward_range: expected two finite numbers, the smaller first, got {said!r}")
    return float(said[0]), float(said[1])


def _determinism(said: str | Enum) -> bool:
    word = said.value if isinstance(said, Enum) else said
    if word not in ("seeded", "stochastic", "unknown"):
        raise VerifierFixtureError(f"determinism: expected seeded, stochastic or unknown, got {word!r}")
    return word == "seeded"


def _expect(case: VerifierFixtureCase, reward: float, end: float | None, low: float, high: float) -> None:
    if not low <= reward <= high:
        raise VerifierFixtureError(f"{case.name}: the reward {reward} is outside of {low} to {high}")
    for wanted in (end, case.expected_reward):
        if wanted is not None and reward != wanted:
            raise VerifierFixtureError(f"{case.name}: expected the reward {wanted}, got {reward}")


async def _refused(fixture: VerifierFixture, case: VerifierFixtureCase) -> None:
    try:
        reward = await _observed(fixture, case)
    except VerifierFixtureError:
        raise
    except Exception as error:
        if str(case.expected_error) in str(error):
            return
        raise VerifierFixtureError(f"{case.name}: the error does not say {case.expected_error!r}: {error}") from error
    raise VerifierFixtureError(f"{case.name}: expected an error, got {reward!r}")


async def _reward(fixture: VerifierFixture, case: VerifierFixtureCase) -> float:
    try:
        result = await _observed(fixture, case)
    except VerifierFixtureError:
        raise
    except Exception as error:
        raise VerifierFixtureError(f"{case.name}: {error}") from error
    reward = result.get("reward") if isinstance(result, Mapping) else getattr(result, "reward", result)
    if not _is_number(reward):
        raise VerifierFixtureError(f"{case.name}: the reward {reward!r} is no finite number")
    return float(reward)


async def _observed(fixture: VerifierFixture, case: VerifierFixtureCase) -> Any:
    try:
        server = fixture.server_factory()
    except Exception as error:
        raise VerifierFixtureError(f"{case.name}: the server cannot be made: {error}") from error
    request = fixture.request_model.model_validate(case.request)
    if case.kind == "determinism":
        if fixture.reseed is None:
            raise VerifierFixtureError(f"{case.name}: a determinism case needs `reseed`")
        await _awaited(fixture.reseed(server, request))
    verify = fixture.invoke or (lambda server, request: server.verify(request))
    return await _awaited(verify(server, request))


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
