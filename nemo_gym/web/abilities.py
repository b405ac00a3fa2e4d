"""What a model server says of itself, asked over HTTP."""

from __future__ import annotations

import asyncio

import aiohttp

from .peers import ServerClient, get_response_json

_ASK_S = 30.0


async def gives_token_ids(client: ServerClient, model_server: str) -> bool | None:
    """What the model server's own probe says; None where it does not know."""
    try:
        async with asyncio.timeout(_ASK_S):
            answer = await get_response_json(await client.get(model_server, "/ready"))
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None
    if not isinstance(answer, dict):
        return None
    said = [answer.get("token_ids"), answer.get("logprobs")]
    return False if False in said else True if all(said) else None
