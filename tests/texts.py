"""Texts, drawn."""

from __future__ import annotations

from hypothesis import strategies as st

_letters = st.characters(exclude_categories=("Cs",)) | st.sampled_from("\r\n\u0301\u200d👩🇩 ")
long_texts = st.text(_letters, min_size=1, max_size=9).map(lambda text: text * (300 // len(text)))
"""Long enough that a replay cuts them into several pieces."""
