"""Captures into what trainers read."""
