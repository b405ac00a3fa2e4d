"""Eval jobs: rows in, rollouts and figures out."""
