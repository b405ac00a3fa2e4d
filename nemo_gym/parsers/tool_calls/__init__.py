"""One module a format of tool calls."""
