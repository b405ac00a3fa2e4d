"""Servers up, ready, down."""
