"""What the model servers in front of HTTP endpoints share: their keys, and how a backend is made of them.

A subclass says what is particular to its provider. With `api: auto` each client is answered in its own dialect, where
the provider speaks it, so that nothing of a request is lost in translation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import AliasChoices, ConfigDict, Field, PrivateAttr, field_validator

from ..backends.http import HttpBackend
from ..backends.link import Link
from ..backends.per_dialect import PerDialect
from ..backends.provider import Provider
from ..dialects import chat, messages, responses
from ..pool.limits import Limits
from ..pool.places import Places, places
from ..pool.pool import Pool
from .server import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel

if TYPE_CHECKING:
    from .app import ModelApp

T = TypeVar("T")

_DIALECTS: dict[str, Any] = {"chat": chat, "responses": responses, "messages": messages}


class EndpointModelConfig(BaseResponsesAPIModelConfig):
    """Keys of every model server in front of endpoints."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    base_url: str | list[str]
    """Up to and including the version; a list names equal endpoints."""
    api_key: str = ""
    model: str = Field(min_length=1)
    api: Literal["auto", "chat", "responses", "messages", "completions"] = "chat"
    """What the endpoint speaks."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    attempt_timeout_s: float | None = Field(default=None, gt=0)
    """Of one try; null: all the time that the call has."""
    max_concurrent_requests: int | None = Field(
        default=None, ge=1, validation_alias=AliasChoices("max_concurrent_requests", "num_concurrent_requests")
    )
    """At one endpoint."""
    requests_per_minute: int | None = Field(default=None, ge=1)
    tokens_per_minute: int | None = Field(default=None, ge=1)
    """The provider's limits, of all endpoints and of all workers together."""

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, value: str | list[str]) -> str | list[str]:
        urls = [value] if isinstance(value, str) else value
        if not urls:
            raise ValueError("expected a URL or a list of URLs, found an empty list")
        if len({url.rstrip("/") for url in urls}) < len(urls):
            raise ValueError("expected each URL once")
        for url in urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"expected a URL that starts with http:// or https://, found {url!r}")
            if "@" in url.partition("://")[2].partition("/")[0]:
                raise ValueError("expected a URL without a user and a password: a key belongs in api_key")
        return value


class EndpointModel(SimpleResponsesAPIModel):
    config: EndpointModelConfig
    _pool: Pool[Any] | None = PrivateAttr(default=None)
    _limits: Limits = PrivateAttr(default_factory=Limits)
    _at_one: dict[str, Places] = PrivateAttr(default_factory=dict)
    """By URL: of calls at one endpoint."""

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        config, most = self.config, self.config.max_concurrent_requests
        self._limits = Limits(config.requests_per_minute, config.tokens_per_minute)
        if most is not None:
            self._at_one = {_bare(url): places(most, self.processes()) for url in self.base_urls()}

    @property
    def spoken(self) -> tuple[str, ...]:
        """The dialects that the backend is asked in; the first one for clients of any other."""
        return ("responses", "chat") if self.config.api == "auto" else (self.config.api,)

    @property
    def backend_dialect(self) -> str | None:
        return self.spoken[0]

    def asked_in(self, dialect: str) -> str | None:
        return dialect if dialect in self.spoken else self.spoken[0]

    def base_urls(self) -> list[str]:
        url = self.config.base_url
        return [url] if isinstance(url, str) else url

    def provider(self, dialect: str) -> Provider:
        """How its API differs from this dialect as published."""
        return Provider()

    def asks_token_ids(self) -> bool | None:
        return None

    def link(self, dialect: str) -> Link:
        """HTTP to the endpoints."""
        config = self.config
        return Link(_DIALECTS[dialect], self.provider(dialect), config.api_key or None, config.attempt_timeout_s)

    def pool_of(self, items: Mapping[str, T]) -> Pool[T]:
        """What is asked, by URL: chosen among and spared as the configuration says."""
        return Pool(
            items,
            places=self._at_one,
            limits=self._limits,
            patient=self.config.retries > 0 or len(items) > 1,
        )

    async def start(self) -> None:
        config = self.config
        pool = self._pool = self.pool_of({url: url for url in map(_bare, self.base_urls())})
        made = {
            dialect: HttpBackend(
                _DIALECTS[dialect],
                self.base_urls(),
                api_key=config.api_key or None,
                model=config.model,
                provider=self.provider(dialect),
                extra_body=config.extra_body,
                ask_token_ids=self.asks_token_ids(),
                retries=config.retries,
                timeout_s=config.timeout_s,
                attempt_timeout_s=config.attempt_timeout_s,
                pool=pool,
            )
            for dialect in self.spoken
        }
        self._backend = made[self.spoken[0]] if len(made) == 1 else PerDialect(made, self.spoken[0])

    def setup_webserver(self) -> ModelApp:
        from .replicas import ReplicaMetrics

        app = super().setup_webserver()
        app.metrics.registry.register(ReplicaMetrics(lambda: () if self._pool is None else (self._pool,)))
        return app


def _bare(url: str) -> str:
    return url.rstrip("/")
