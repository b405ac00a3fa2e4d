"""Calls by name: refused connections are tried again, nothing else is; cookies are each caller's own."""

import asyncio
import socket

import pytest
from aiohttp import ClientConnectorError, ClientResponseError, web
from omegaconf import OmegaConf
from pydantic import BaseModel, Field

from nemo_gym import server_utils
from nemo_gym.web import client, peers
from nemo_gym.web.peers import ServerClient, get_response_json, raise_for_status
from nemo_gym.web.service import get_first_server_config_dict


@pytest.fixture(autouse=True)
async def closed():
    yield
    await client.close()


@pytest.fixture
async def peer():
    seen = []

    async def echo(request):
        seen.append(request)
        body = await request.read()
        answer = web.json_response({"body": body.decode(), "cookies": dict(request.cookies)})
        answer.set_cookie("mine", "1")
        return answer

    async def fail(request):
        seen.append(request)
        return web.Response(status=503, text="busy")

    app = web.Application()
    app.router.add_route("*", "/echo", echo)
    app.router.add_route("*", "/fail", fail)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield ServerClient({"it": f"http://127.0.0.1:{port}/"}, {"it": "resources_servers"}), seen
    await runner.cleanup()


class Body(BaseModel):
    schema_: str = Field(default="s", alias="schema")
    n: int | None = None


async def test_json_of_any_kind(peer):
    call, _ = peer
    for body, sent in [
        ({"a": 1}, '{"a":1}'),
        ({}, "{}"),
        (Body(schema="x"), '{"schema":"x"}'),
        ([Body(schema="x", n=None)], '[{"schema":"x","n":null}]'),
        ({"big": 2**70}, f'{{"big":{2**70}}}'),
    ]:
        answer = await get_response_json(await call.post("it", "/echo", json=body))
        assert answer["body"] == sent


async def test_cookies_are_never_kept(peer):
    call, _ = peer
    first = await call.get("it", "/echo", cookies={"session": "a"})
    assert (await get_response_json(first))["cookies"] == {"session": "a"}
    assert first.cookies["mine"].value == "1"
    assert (await get_response_json(await call.get("it", "/echo")))["cookies"] == {}


async def test_answers_are_not_tried_again(peer):
    call, seen = peer
    response = await call.post("it", "/fail", json={})
    assert response.status == 503
    assert len(seen) == 1
    with pytest.raises(ClientResponseError) as caught:
        await raise_for_status(response)
    assert caught.value.status == 503
    assert caught.value.response_content == b"busy"


async def test_refused_then_there(monkeypatch):
    monkeypatch.setattr(peers, "_FIRST_WAIT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    asking = asyncio.create_task(ServerClient({"it": f"http://127.0.0.1:{port}"}).get("it", "/x"))
    await asyncio.sleep(0.12)
    app = web.Application()
    app.router.add_get("/x", _ok)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    assert (await asking).status == 200
    await runner.cleanup()


async def _ok(request):
    return web.Response(text="ok")


async def test_refused_for_good(monkeypatch):
    monkeypatch.setattr(peers, "_FIRST_WAIT_S", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    with pytest.raises(ClientConnectorError):
        await ServerClient({"it": f"http://127.0.0.1:{port}"}).get("it", "/x")


async def test_unknown_name():
    with pytest.raises(ValueError, match="no server of this run is named 'polcy_model': did you mean 'policy_model'"):
        await ServerClient({"policy_model": "http://h:1"}).get("polcy_model", "/x")


def test_addresses_as_a_configuration():
    call = ServerClient({"env": "http://127.0.0.1:81"}, {"env": "resources_servers"})
    settings = get_first_server_config_dict(call.global_config_dict, "env")
    assert (settings.host, settings["port"]) == ("127.0.0.1", 81)
    assert call._build_server_base_url(settings) == "http://127.0.0.1:81"


def test_a_client_from_a_configuration(monkeypatch):
    address = {"host": "127.0.0.1", "port": 5}
    config = {"a": {"resources_servers": {"x": address}}, "b": {"resources_servers": {"x": {}}}, "n": 1}
    made = ServerClient(head_server_config=None, global_config_dict=OmegaConf.create(config))
    assert (made.base_urls, made.kinds) == ({"a": "http://127.0.0.1:5"}, {"a": "resources_servers"})
    assert made._resolve_base_url("a") == "http://127.0.0.1:5"
    assert made.global_config_dict == config
    assert ServerClient.load_from_global_config().base_urls == {}  # outside of a run
    monkeypatch.setattr(server_utils, "get_global_config_dict", lambda: config)  # as tests of environments do
    assert server_utils.get_server_url("a") == "http://127.0.0.1:5"


@pytest.mark.parametrize("read_before", [False, True])
async def test_an_error_keeps_the_peers_own_words(peer, read_before):
    client, _ = peer
    response = await client.get("it", "/fail")
    if read_before:
        await response.read()
    with pytest.raises(ClientResponseError) as raised:
        await raise_for_status(response)
    assert (raised.value.status, raised.value.response_content) == (503, b"busy")
