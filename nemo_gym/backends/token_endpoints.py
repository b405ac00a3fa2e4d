"""A token backend over endpoints: what they give is found out first, and what they are asked follows from it.

The tokenizer in hand must be the endpoint's own, or its ids would mean other words there; where the endpoint can be
asked, it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from ..dialects import codec
from ..engines.engine import Engine
from ..engines.http import HttpEngine
from ..engines.wire import Route
from ..exchange.errors import ModelError
from ..parsers.detect import reasoning_format, tool_call_format
from ..pool.attempts import Attempts
from ..pool.pool import Pool
from ..rendering.renderer import Renderer, renderer
from ..rendering.tokenizer import read_json
from . import abilities
from .failures import is_repeatable
from .link import Link
from .tokens import TokensBackend

log = logging.getLogger("nemo_gym.backends")

_TOKENIZE_S = 10.0
_PROBE = "Hello, 12 wörld!\n<tool_call>"
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


PoolOf = Callable[[Mapping[str, Engine]], Pool[Engine]]


class Wanted(Struct, frozen=True):
    """What the configuration says of it."""

    model: str
    served_name: str
    folder: Path | None
    """With tokenizer and chat template; None: where the endpoint says that the model is."""
    history: Literal["exact", "template"] | None
    """None: exact, where the endpoint gives token ids."""
    token_ids: bool | None
    route: Literal["completions", "generate"]
    tool_parser: str | None
    reasoning_parser: str | None
    adapters: tuple[str, ...]
    template_kwargs: Mapping[str, Any]
    prompt_logprobs: bool
    renderer: str
    """A family's name, `auto` or `template`."""
    retries: int
    timeout_s: float


class Endpoints:
    """Args:
    link: to any of them.
    urls: equal endpoints, each up to and including `/v1`.
    pool_of: makes the pool of engines.
    """

    def __init__(self, link: Link, urls: Sequence[str], wanted: Wanted, pool_of: PoolOf) -> None:
        self._link = link
        self._urls = [url.rstrip("/") for url in urls]
        self._wanted = wanted
        self._pool_of = pool_of
        self.pool: Pool[Engine] | None = None

    async def backend(self) -> TokensBackend:
        """Raises ModelError while no endpoint answers, and when what is wanted cannot be had of them."""
        failure: ModelError | None = None
        for url in self._urls:
            try:
                return await self._backend(url)
            except ModelError as error:
                failure = error
                if error.kind != "unreachable":
                    break
        assert failure is not None
        raise failure

    async def _backend(self, url: str) -> TokensBackend:
        wanted = self._wanted
        entry = await abilities.served(self._link, url, wanted.model)
        folder = wanted.folder or _folder(entry.get("root"))
        rendering = await asyncio.to_thread(renderer, folder, wanted.template_kwargs, wanted.renderer)
        await self._same_tokenizer(url, rendering)
        route = await self._route(url)
        context = entry.get("max_model_len")
        # The generate route leaves the model's own defaults to whoever asks.
        defaults = _defaults(folder) if route == "generate" else {}
        engines: dict[str, Engine] = {
            one: HttpEngine(
                self._link,
                one,
                wanted.model,
                route=route,
                context=context if isinstance(context, int) else None,
                defaults=defaults,
            )
            for one in self._urls
        }
        self.pool = self._pool_of(engines)
        return TokensBackend(
            self.pool,
            rendering,
            tool_call_format(rendering.text) if wanted.tool_parser == "auto" else wanted.tool_parser,
            reasoning_format(rendering.text) if wanted.reasoning_parser == "auto" else wanted.reasoning_parser,
            wanted.served_name,
            wanted.history or "exact",
            attempts=Attempts(tries=wanted.retries + 1, seconds=wanted.timeout_s, repeatable=is_repeatable),
            logprobs_mode=None,
            adapters=wanted.adapters,
            prompt_logprobs=wanted.prompt_logprobs,
        )

    async def _route(self, url: str) -> Route:
        wanted = self._wanted
        if wanted.token_ids is False:
            return "text"
        gives = await HttpEngine(self._link, url, wanted.model, route=wanted.route).gives()
        if gives:
            return wanted.route
        why = "has no such route" if gives is None else "gives no token ids"
        if wanted.token_ids or wanted.history == "exact" or wanted.route == "generate":
            raise ModelError(502, "backend", f"token ids are wanted of the endpoint, and its {wanted.route} {why}")
        log.warning("the endpoint %s: it is asked with text, and its records have none", why)
        return "text"

    async def _same_tokenizer(self, url: str, rendering: Renderer) -> None:
        body = codec.encode({"model": self._wanted.model, "prompt": _PROBE, "add_special_tokens": False})
        root = url.removesuffix("/v1")
        status, _, data = await self._link.send("POST", root + "/tokenize", body, seconds=_TOKENIZE_S)
        try:
            theirs = codec.decode(data)["tokens"] if status == 200 else None
        except (ValueError, LookupError, TypeError):
            theirs = None
        if isinstance(theirs, list) and theirs != rendering.encode(_PROBE).tolist():
            raise ModelError(502, "backend", "tokenizer: the folder's is another one than the endpoint's model has")


def _folder(root: Any) -> Path:
    if isinstance(root, str) and (Path(root) / "config.json").is_file():
        return Path(root)
    raise ModelError(
        502, "backend", "tokenizer: the endpoint's model is no folder here; name one with its tokenizer and template"
    )


def _defaults(folder: Path) -> dict[str, Any]:
    """The sampling that the model's makers advise."""
    given = read_json(folder / "generation_config.json")
    return {name: given[name] for name in _DEFAULTS if given.get(name) is not None}
