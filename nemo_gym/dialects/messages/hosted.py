"""Tools that this API names by a type and that the client runs: what another provider's model is told of them (A18)."""

from __future__ import annotations

from typing import Any


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_RANGE = {"type": "array", "items": _WHOLE, "description": "First and last line; -1 is the end."}
_POINT = {"type": "array", "items": _WHOLE, "description": "x and y, in pixels."}

_BASH = _object(
    [],
    command={**_TEXT, "description": "The command to run."},
    restart={"type": "boolean", "description": "True starts the shell anew."},
)
_EDITOR = _object(
    ["command", "path"],
    command={**_TEXT, "enum": ["view", "create", "str_replace", "insert"]},
    path=_TEXT,
    file_text={**_TEXT, "description": "For create: the file's content."},
    old_str={**_TEXT, "description": "For str_replace: what is replaced; it occurs exactly once."},
    new_str={**_TEXT, "description": "For str_replace and insert: the new text."},
    insert_line={**_WHOLE, "description": "For insert: the line after which the text goes; 0 is the beginning."},
    insert_text={**_TEXT, "description": "For insert: the text."},
    view_range={**_RANGE, "description": "For view: first and last line; -1 is the end."},
)
_MEMORY = _object(
    ["command"],
    command={**_TEXT, "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
    path={**_TEXT, "description": "Begins with /memories."},
    file_text=_TEXT,
    old_str=_TEXT,
    new_str=_TEXT,
    insert_line=_WHOLE,
    insert_text=_TEXT,
    view_range=_RANGE,
    old_path={**_TEXT, "description": "For rename."},
    new_path={**_TEXT, "description": "For rename."},
)
_ACTIONS = """key type mouse_move left_click left_click_drag right_click middle_click double_click triple_click
left_mouse_down left_mouse_up scroll hold_key wait screenshot cursor_position zoom"""
_COMPUTER = _object(
    ["action"],
    action={**_TEXT, "enum": _ACTIONS.split()},
    coordinate=_POINT,
    start_coordinate=_POINT,
    text={**_TEXT, "description": "What to type, or the keys to press."},
    scroll_direction={**_TEXT, "enum": ["up", "down", "left", "right"]},
    scroll_amount=_WHOLE,
    duration={"type": "number", "description": "Seconds."},
    region={"type": "array", "items": _WHOLE, "description": "For zoom: x0, y0, x1, y1."},
)

_KNOWN: list[tuple[str, str, dict[str, Any]]] = [
    ("bash_", "Run a command in a shell that lives on between calls.", _BASH),
    ("text_editor_", "View, create and edit text files.", _EDITOR),
    ("memory_", "Keep notes in files that outlast the conversation.", _MEMORY),
    ("computer_2", "Use the screen, the mouse and the keyboard of a computer.", _COMPUTER),
]


def find(kind: str) -> tuple[str, dict[str, Any]] | None:
    """The description and the schema of a tool's type; None for what the provider runs itself."""
    return next(((says, schema) for prefix, says, schema in _KNOWN if kind.startswith(prefix)), None)
