"""JSON bodies: read back as they were written, and nothing is written that could not be read back."""

import pytest
from pydantic import BaseModel, Field

from nemo_gym.web.body import dumps, loads


class Body(BaseModel):
    schema_: str = Field(default="s", alias="schema")


@pytest.mark.parametrize(
    "value", [2**70, -(2**64), 9007199254740993, "\ud800", {"a": [1.5, None, True, "ü"]}, {}, {"deep": [[[1]] * 3]}]
)
def test_a_body_is_read_back_as_it_was(value):
    assert loads(dumps(value)) == value


def test_objects_among_values():
    assert dumps({"big": 2**70, "is": [Body(schema="x"), Body()]}) == b'{"big":%d,"is":[{"schema":"x"},{}]}' % 2**70


def nested(levels):
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_levels():
    assert loads(dumps(nested(500))) == nested(500)
    with pytest.raises(ValueError, match="nested too deeply"):
        dumps({"it": nested(500)})


@pytest.mark.parametrize("body", [b"", b"\x00<html>", b"\xff", b"[1", b"[" * 100_000 + b"]" * 100_000])
def test_what_is_no_json(body):
    with pytest.raises(ValueError, match=r"decode|Expecting|too deeply"):
        loads(body)
