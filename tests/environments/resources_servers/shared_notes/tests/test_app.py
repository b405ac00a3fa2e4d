import json
from unittest.mock import MagicMock

from fastapi.testclient import TestClient
from pytest import fixture, importorskip

from nemo_gym.base_resources_server import NEMO_GYM_MCP_SESSION_TOKEN_HEADER
from nemo_gym.server_utils import ServerClient
from resources_servers.shared_notes.app import SharedNotesConfig, SharedNotesServer

TASK = {
    "responses_create_params": {"input": "Note that x is 1."},
    "verifier_metadata": {"expected_notes": {"x": "1"}},
}


def _verify_body(tool_name: str) -> dict:
    call = {"type": "function_call", "call_id": "call_1", "name": tool_name, "arguments": "{}"}
    response = {
        "id": "resp_1",
        "created_at": 0,
        "model": "dummy",
        "object": "response",
        "output": [call],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    return {**TASK, "response": response}


class TestApp:
    @fixture
    def client(self):
        importorskip("mcp")
        from nemo_gym.mcp_auto_exposure import maybe_auto_expose

        config = SharedNotesConfig(
            host="0.0.0.0", port=8080, entrypoint="", name="shared_notes", expose_tools_over_mcp=True
        )
        server = SharedNotesServer(config=config, server_client=MagicMock(spec=ServerClient))
        app = server.setup_webserver()
        assert set(maybe_auto_expose(server, app)) == {"write_note", "read_note"}
        with TestClient(app, base_url="http://127.0.0.1:8000") as client:
            yield client

    def _rpc(self, client: TestClient, method: str, params: dict, token: str | None) -> dict:
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        if token is not None:
            headers[NEMO_GYM_MCP_SESSION_TOKEN_HEADER] = token
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return client.post("/mcp", headers=headers, json=body).json()["result"]

    def _call(self, client: TestClient, name: str, token: str | None, **arguments: str) -> dict:
        return self._rpc(client, "tools/call", {"name": name, "arguments": arguments}, token)

    def _token(self, client: TestClient, body: dict = TASK) -> str:
        metadata = client.post("/seed_session", json=body).json()["mcp"]
        assert (metadata["server_name"], metadata["url_path"]) == ("shared_notes", "/mcp")
        return metadata["headers"][NEMO_GYM_MCP_SESSION_TOKEN_HEADER]

    def test_tools_are_offered_with_their_schemas(self, client: TestClient) -> None:
        tools = {tool["name"]: tool for tool in self._rpc(client, "tools/list", {}, None)["tools"]}
        assert tools["write_note"]["description"] == "Write a note, or write over it."
        assert tools["write_note"]["inputSchema"]["required"] == ["title", "text"]

    def test_a_call_is_of_the_session_that_the_token_names(self, client: TestClient) -> None:
        token = self._token(client)
        result = self._call(client, "write_note", token, title="x", text="1")
        assert json.loads(result["content"][0]["text"]) == {"text": "1"}
        assert result["structuredContent"] == {"text": "1"}
        assert client.post("/read_note", json={"title": "x"}).json() == {"text": "1"}  # the cookie's session
        verified = client.post("/verify", json=_verify_body("mcp__shared_notes__write_note")).json()
        assert (verified["reward"], verified["tools_called"]) == (1.0, ["write_note"])
        assert verified["response"]["output"][0]["name"] == "mcp__shared_notes__write_note"
        client.cookies.clear()
        other = self._token(client)
        assert self._call(client, "read_note", other, title="x")["isError"] is True

    def test_failures_are_told_in_the_words_of_the_route(self, client: TestClient) -> None:
        token = self._token(client)
        for name, arguments, words in [
            ("read_note", {"title": "y"}, "HTTP 404 from POST /read_note: there is no note y"),
            ("read_note", {}, "HTTP 422 from POST /read_note"),
            ("verify", {}, "Unknown tool: 'verify'. Available tools: ['read_note', 'write_note']"),
        ]:
            result = self._call(client, name, token, **arguments)
            assert result["isError"] is True
            assert words in result["content"][0]["text"]

    def test_only_a_token_opens_a_session_and_only_for_its_tools(self, client: TestClient) -> None:
        token = self._token(client)
        for wrong in (None, "nonsense", token[:-2]):
            assert self._call(client, "write_note", wrong, title="x", text="1")["isError"] is True
        narrow = {**TASK, "verifier_metadata": {"expected_notes": {}, "allowed_tools": ["read_note"]}}
        client.cookies.clear()
        token = self._token(client, narrow)
        assert [tool["name"] for tool in self._rpc(client, "tools/list", {}, token)["tools"]] == ["read_note"]
        result = self._call(client, "write_note", token, title="x", text="1")
        assert "is not allowed for this session" in result["content"][0]["text"]
