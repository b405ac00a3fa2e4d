"""The small client: bounded tries, no second try for a spent key."""

import pytest
from aiohttp import ClientResponseError, web
from aiohttp.test_utils import TestServer

from nemo_gym.openai_utils import NeMoGymAsyncOpenAI
from nemo_gym.web import client


@pytest.fixture
async def endpoint():
    seen, answers = [], []

    async def handle(request):
        seen.append((request.method, request.path, request.headers["Authorization"], await request.text()))
        status, body = answers.pop(0) if answers else (200, {"ok": True})
        return web.json_response(body, status=status, headers={"Retry-After": "0"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    server = TestServer(app, host="127.0.0.1")
    await server.start_server()
    yield str(server.make_url("/v1")), seen, answers
    await client.close()
    await server.close()


async def test_calls(endpoint):
    url, seen, _ = endpoint
    openai = NeMoGymAsyncOpenAI(base_url=url, api_key="k")
    assert await openai.create_chat_completion(model="m", messages=[]) == {"ok": True}
    await openai.create_models()
    await openai.create_response(input="q")
    await openai.create_tokenize(prompt="x")
    assert [path for _, path, _, _ in seen] == ["/v1/chat/completions", "/v1/models", "/v1/responses", "/tokenize"]
    assert seen[0] == ("POST", "/v1/chat/completions", "Bearer k", '{"model":"m","messages":[]}')


async def test_transient_answers_are_tried_again(endpoint):
    url, seen, answers = endpoint
    answers += [(503, {}), (429, {})]
    assert await NeMoGymAsyncOpenAI(base_url=url, api_key="k").create_response(input="q") == {"ok": True}
    assert len(seen) == 3


async def test_tries_are_bounded(endpoint):
    url, seen, answers = endpoint
    answers += [(500, {"why": 1})] * 10
    with pytest.raises(ClientResponseError) as caught:
        await NeMoGymAsyncOpenAI(base_url=url, api_key="k").create_response(input="q")
    assert len(seen) == 3
    assert caught.value.response_content == b'{"why": 1}'


async def test_a_spent_key_is_not_tried_again(endpoint):
    url, seen, answers = endpoint
    answers += [(429, {"error": {"code": "insufficient_quota"}})]
    with pytest.raises(ClientResponseError):
        await NeMoGymAsyncOpenAI(base_url=url, api_key="k").create_response(input="q")
    assert len(seen) == 1
