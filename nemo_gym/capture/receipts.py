"""Receipts that wait to be written. Nobody waits for them, so they gather for a batch of their own."""

from __future__ import annotations

from .record import Receipt
from .schema import Row, row_digest

WAIT_S = 1.0
"""So long a receipt waits for others."""
_ENOUGH = 64
"""So many do not wait."""


class Receipts:
    """Args: base: what each row of the writer says."""

    def __init__(self, base: Row) -> None:
        self._base = base
        self._waiting: list[Receipt] = []
        self._waited = False

    def add(self, receipt: Receipt) -> None:
        self._waiting.append(receipt)

    def have_waited(self) -> None:
        self._waited = True

    @property
    def due(self) -> bool:
        return bool(self._waiting) and (self._waited or len(self._waiting) >= _ENOUGH)

    def taken(self) -> list[Row]:
        """As rows; they wait no more."""
        receipts, self._waiting, self._waited = self._waiting, [], False
        rows: list[Row] = []
        for one in receipts:
            row = {**self._base, "kind": "receipt", "call_id": one.call_id}
            row |= {"delivered": one.delivered, "at": float(one.at)}
            row["digest"] = row_digest(row)
            rows.append(row)
        return rows
