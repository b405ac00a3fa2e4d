from unittest.mock import MagicMock

from fastapi.testclient import TestClient
from pytest import mark

from nemo_gym.openai_utils import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
)
from nemo_gym.server_utils import ServerClient
from resources_servers.country_facts.app import (
    CountryFactsConfig,
    CountryFactsServer,
    CountryFactsVerifyRequest,
    GetCapitalRequest,
)


class TestApp:
    def _server(self) -> CountryFactsServer:
        config = CountryFactsConfig(host="0.0.0.0", port=8080, entrypoint="", name="")
        return CountryFactsServer(config=config, server_client=MagicMock(spec=ServerClient))

    def _request(self, *arguments: str) -> CountryFactsVerifyRequest:
        calls = [
            NeMoGymResponseFunctionToolCall(
                arguments=text, call_id=f"call_{n}", name="get_capital", type="function_call", status="completed"
            )
            for n, text in enumerate(arguments)
        ]
        return CountryFactsVerifyRequest(
            country="Kenya",
            responses_create_params=NeMoGymResponseCreateParamsNonStreaming(input="What is the capital of Kenya?"),
            response=NeMoGymResponse(
                id="resp_1",
                created_at=0.0,
                model="dummy",
                object="response",
                output=calls,
                parallel_tool_calls=False,
                tool_choice="auto",
                tools=[],
            ),
        )

    def test_sanity(self) -> None:
        self._server()

    async def test_tool(self) -> None:
        assert (await self._server().get_capital(GetCapitalRequest(country="Peru"))).capital == "Lima"

    @mark.parametrize(
        ("arguments", "reward"),
        [
            (['{"country": "Kenya"}'], 1.0),
            (['{"country": "Peru"}'], 0.0),
            ([], 0.0),
            (['{"country": "Kenya"}', '{"country": "Kenya"}'], 0.0),
        ],
    )
    async def test_verify(self, arguments: list, reward: float) -> None:
        result = await self._server().verify(self._request(*arguments))
        assert result.reward == reward
        assert len(result.asked_for) == len(arguments)

    def test_routes(self) -> None:
        client = TestClient(self._server().setup_webserver())
        assert client.post("/get_capital", json={"country": "japan"}).json() == {"capital": "Tokyo"}
        assert client.post("/seed_session", json={"country": "Kenya"}).status_code == 200
        answer = client.post("/verify", json=self._request('{"country": "Kenya"}').model_dump(mode="json"))
        assert answer.status_code == 200
        assert (answer.json()["reward"], answer.json()["country"]) == (1.0, "Kenya")
        assert client.post("/verify", json={"country": "Kenya"}).status_code == 422
