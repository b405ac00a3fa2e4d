"""The commands: each parses its arguments, calls one room, prints what came of it."""
