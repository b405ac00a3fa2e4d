"""The grammar of a Responses stream, as a client that trusts nothing reads it. # R21 R22 R30"""

from __future__ import annotations

from typing import Any

from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def check_grammar(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """R21 R22 R30: returns the output as an independent client folds it."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        EVENT.validate_python(event)
    core = [event for event in events if event["type"] != "response.in_progress"]
    assert core[0]["type"] == "response.created"
    assert events[1]["type"] == "response.in_progress"
    assert core[-1]["type"] in ("response.completed", "response.incomplete", "response.failed")
    output, open_item, texts = [], None, {}
    for event in core[1:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "error":
            continue
        assert event["output_index"] == len(output)
        if kind == "output_item.added":
            assert open_item is None
            open_item, texts = event["item"], {}
        elif kind == "output_item.done":
            assert open_item["id"] == event["item"]["id"]
            assert open_item["type"] == event["item"]["type"]
            output.append(event["item"])
            open_item = None
        else:
            assert open_item["id"] == event["item_id"]
            place = (event.get("content_index"), event.get("summary_index"))
            if kind.endswith(".delta"):
                assert event["delta"]
                texts[place] = texts.get(place, "") + event["delta"]
            elif kind.endswith("_part.added"):
                assert place not in texts
                texts[place] = ""
            elif kind in ("content_part.done", "reasoning_summary_part.done"):
                assert (event["part"].get("text") or event["part"].get("refusal")) == texts[place]
            else:
                said = next(event[field] for field in ("text", "refusal", "arguments", "input") if field in event)
                assert said == texts.get(place, "")
    assert open_item is None
    return output
