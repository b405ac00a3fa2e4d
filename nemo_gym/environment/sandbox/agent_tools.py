"""For agents within a sandbox: addresses that can be reached from there, tools over MCP, the verifier's word."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ...config.types import ResourcesServerRef
from ...dialects.responses.objects import NeMoGymResponse
from ...web.peers import ServerClient, get_response_json, raise_for_status
from ...web.service import get_server_url
from ..failure_kinds import AGENT_RUN_ERROR
from ..mcp_names import NEMO_GYM_MCP_METADATA_KEY
from ..server import BaseRunRequest

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""What a server listens on when it listens everywhere, and where it is then reached on its own machine."""
_RESTRICTS = "opensandbox"


def sandbox_server_url(name: str, *, require_reachable: bool = False) -> str:
    """A server's URL, for a sandbox.

    Args:
        require_reachable: the sandbox is on another machine. Raises ValueError for an address of this machine alone.
    """
    url = get_server_url(name)
    parts = urlsplit(url)
    if require_reachable:
        _host(parts)
        return url
    if parts.hostname not in _EVERYWHERE:
        return url
    port = f":{parts.port}" if parts.port else ""
    return parts._replace(netloc=_EVERYWHERE[parts.hostname] + port, query="", fragment="").geturl()


def restricted_network_policy(provider_name: str, urls: Sequence[str]) -> dict[str, object]:
    """Nothing but these hosts may be reached. Raises ValueError where that cannot be had."""
    if provider_name != _RESTRICTS:
        raise ValueError(f"the sandbox provider {provider_name!r} cannot restrict the network; OpenSandbox can")
    hosts = sorted({_host(urlsplit(url)) for url in urls})
    return {"defaultAction": "deny", "egress": [{"action": "allow", "target": host} for host in hosts]}


def _host(parts: SplitResult) -> str:
    host = (parts.hostname or "").lower().rstrip(".")
    try:
        address = ipaddress.ip_address(host)
        local = address.is_loopback or address.is_unspecified
    except ValueError:
        local = host in ("", "localhost")
    if local:
        raise ValueError(
            f"a sandbox cannot reach {parts.geturl()}: expected a `host` that is reachable from other machines"
        )
    return parts.hostname or host


async def seed_mcp_servers(
    client: ServerClient,
    servers: Sequence[ResourcesServerRef],
    body: BaseRunRequest,
    cookies: Mapping[str, str],
    *,
    timeout_s: float,
    require_reachable: bool = False,
) -> dict[str, dict[str, object]]:
    """Sessions at these servers, and by server what an MCP client takes; only the session's own token goes along."""
    found: dict[str, dict[str, object]] = {}
    for server in servers:
        answer = await client.post(
            server_name=server.name, url_path="/seed_session", json=body.model_dump(), cookies=cookies
        )
        await raise_for_status(answer)
        told = (await get_response_json(answer)).get(NEMO_GYM_MCP_METADATA_KEY)
        if not isinstance(told, dict) or not told.get("headers"):
            raise ValueError(
                f"{server.name} must expose authenticated MCP tools (expose_tools_over_mcp): its seed names none"
            )
        path = str(told.get("url_path", "/mcp")).lstrip("/")
        found[server.name] = {
            "url": f"{sandbox_server_url(server.name, require_reachable=require_reachable)}/{path}",
            "headers": told["headers"],
            "enabled": True,
            "timeout": int(timeout_s * 1000),
        }
    return found


async def verify_agent_response(
    client: ServerClient,
    server: ResourcesServerRef,
    body: BaseRunRequest,
    response: NeMoGymResponse,
    cookies: Mapping[str, str],
    *,
    force_zero_reward: bool,
) -> dict[str, Any]:
    """The verifier's answer.

    Args:
        force_zero_reward: the agent failed: the verifier sees an empty response, which it must score with 0, and the
            answer has the one that there was.
    """
    shown = response.model_copy(update={"output": []}) if force_zero_reward else response
    answer = await client.post(
        server_name=server.name,
        url_path="/verify",
        cookies=cookies,
        json=body.model_dump(mode="json") | {"response": shown.model_dump(mode="json")},
    )
    await raise_for_status(answer)
    result: dict[str, Any] = await get_response_json(answer)
    if not force_zero_reward:
        return result
    if result.get("reward") != 0 or result.get("mask_sample"):
        raise ValueError(f"{server.name} gives an empty response {result.get('reward')!r}, and not a measured 0")
    return result | {
        "response": response.model_dump(mode="json"),
        "failure_kind": AGENT_RUN_ERROR,
        "failure_reason": "the agent failed, so the verifier was shown an empty response",
    }
