"""Tools over MCP: notes of one session, written and read by routes that know nothing of MCP."""

from typing import Any, Dict

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY


class SharedNotesConfig(BaseResourcesServerConfig):
    pass


class WriteNoteRequest(BaseModel):
    title: str
    text: str


class ReadNoteRequest(BaseModel):
    title: str


class NoteResponse(BaseModel):
    text: str


class SharedNotesVerifyRequest(BaseVerifyRequest):
    verifier_metadata: Dict[str, Any]


class SharedNotesVerifyResponse(BaseVerifyResponse):
    notes: Dict[str, str]
    tools_called: list[str]


class SharedNotesServer(SimpleResourcesServer):
    config: SharedNotesConfig
    notes: Dict[str, Dict[str, str]] = Field(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/write_note")(self.write_note)
        app.post("/read_note")(self.read_note)
        return app

    def mcp_allowed_tools_for_session(self, seed_body: Dict[str, Any]) -> list[str] | None:
        return (seed_body.get("verifier_metadata") or {}).get("allowed_tools")

    async def write_note(self, request: Request, body: WriteNoteRequest) -> NoteResponse:
        """Write a note, or write over it."""
        self.notes.setdefault(request.session[SESSION_ID_KEY], {})[body.title] = body.text
        return NoteResponse(text=body.text)

    async def read_note(self, request: Request, body: ReadNoteRequest) -> NoteResponse:
        """Read a note."""
        notes = self.notes.get(request.session[SESSION_ID_KEY], {})
        if body.title not in notes:
            raise HTTPException(status_code=404, detail=f"there is no note {body.title}")
        return NoteResponse(text=notes[body.title])

    async def verify(self, request: Request, body: SharedNotesVerifyRequest) -> SharedNotesVerifyResponse:
        notes = self.notes.get(request.session[SESSION_ID_KEY], {})
        called = [item.name for item in body.response.output if item.type == "function_call"]
        return SharedNotesVerifyResponse(
            **body.model_dump(),
            reward=float(notes == body.verifier_metadata["expected_notes"] and "write_note" in called),
            notes=notes,
            tools_called=called,
        )


if __name__ == "__main__":
    SharedNotesServer.run_webserver()
