"""P4: the declared schema decides what plain text between tags means."""

import json

import pytest

from nemo_gym.parsers import output_parser
from nemo_gym.parsers.schema import Schema, strict_json


def typed(text, declared, **root):
    return Schema({"type": "object", "properties": {"a": declared}, **root}).read("a", text)


BIG = "123456789012345678901234567890"
OBJECT = {"type": "object"}


@pytest.mark.parametrize(
    ("text", "declared", "json_text"),
    [
        # a declared string stays verbatim
        ("99797", {"type": "string"}, '"99797"'),
        ("true", {"type": "string"}, '"true"'),
        ("null", {"type": "string"}, '"null"'),
        ('"quoted"', {"type": "string"}, '"\\"quoted\\""'),
        ('{"b": 1}', {"type": "string"}, '"{\\"b\\": 1}"'),
        (" two ", {"type": "string"}, '" two "'),
        ("", {"type": "string"}, '""'),
        # other types: JSON
        ("5", {"type": "integer"}, "5"),
        (BIG, {"type": "integer"}, BIG),
        ("5.0", {"type": "integer"}, "5.0"),
        ("1.50", {"type": "number"}, "1.50"),
        (" 5\n", {"type": "number"}, "5"),
        ("true", {"type": "boolean"}, "true"),
        ("null", {"type": "null"}, "null"),
        ('{"b":  [1]}', OBJECT, '{"b":  [1]}'),
        ("[1, 2]", {"type": "array"}, "[1, 2]"),
        # escaped JSON
        ('"5"', {"type": "integer"}, "5"),
        ('"{\\"b\\": 1}"', OBJECT, '{"b": 1}'),
        ('{\\"b\\": 1}', OBJECT, '{"b": 1}'),
        ('"[1]"', {"type": "array"}, "[1]"),
        # a literal of Python
        ("True", {"type": "boolean"}, "true"),
        ("None", {"type": "null"}, "null"),
        ("{'b': None, 'c': True}", OBJECT, '{"b": null, "c": true}'),
        ("(1, 2)", {"type": "array"}, "[1, 2]"),
        ("+5", {"type": "integer"}, "5"),
        (".5", {"type": "number"}, "0.5"),
        # what cannot be read stays text, and what is another type's stays what it is
        ("five", {"type": "integer"}, '"five"'),
        ("NaN", {"type": "number"}, '"NaN"'),
        ("1e309", {"type": "number"}, '"1e309"'),
        ("-Infinity", {"type": "number"}, '"-Infinity"'),
        ("{'b': {1}}", OBJECT, "\"{'b': {1}}\""),
        ("{b: 1}", OBJECT, '"{b: 1}"'),
        ("5.5", {"type": "integer"}, "5.5"),
        ("1", {"type": "boolean"}, "1"),
        ("__import__('os')", OBJECT, "\"__import__('os')\""),
        # undeclared: strict JSON only
        ("5", None, "5"),
        ("true", None, "true"),
        ('"q"', None, '"q"'),
        ("True", None, '"True"'),
        ("{'b': 1}", None, "\"{'b': 1}\""),
        ("NaN", None, '"NaN"'),
        ("1e309", None, '"1e309"'),
        ("[1, NaN]", None, '"[1, NaN]"'),
        ("text", {}, '"text"'),
        ("5", True, "5"),
        # unions
        ("null", {"type": ["string", "null"]}, "null"),
        ("None", {"type": ["string", "null"]}, '"None"'),
        ("5", {"type": ["string", "integer"]}, "5"),
        ("5 km", {"type": ["string", "integer"]}, '"5 km"'),
        ("5", {"anyOf": [{"type": "string"}, {"type": "null"}]}, '"5"'),
        ("null", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null"),
        ('{"b": 1}', {"oneOf": [{"type": "string"}, OBJECT]}, '{"b": 1}'),
        ("5", {"allOf": [{"type": "string"}, {"minLength": 1}]}, '"5"'),
        ("null", {"type": "integer", "nullable": True}, "null"),
        # enums
        ("5", {"enum": ["5", "6"]}, '"5"'),
        ("5", {"enum": [5, 6]}, "5"),
        ("5", {"enum": ["5", 7]}, '"5"'),
        ("7", {"enum": ["5", 7]}, "7"),
        ("celsius", {"type": "string", "enum": ["celsius"]}, '"celsius"'),
        ('"celsius"', {"type": "string", "enum": ["celsius"]}, '"celsius"'),
        ("\ncelsius\n", {"type": "string", "enum": ["celsius"]}, '"celsius"'),
        ("true", {"const": True}, "true"),
        # nested objects
        ('{"zip": 12345, "n": "5"}', {"type": "object", "properties": {"zip": {"type": "string"},
                                                                        "n": {"type": "integer"}}},
         '{"zip": "12345", "n": 5}'),
        ('["1", "x"]', {"type": "array", "items": {"type": "integer"}}, '[1, "x"]'),
        ('[{"n": "5"}]', {"items": {"properties": {"n": {"type": "integer"}}}}, '[{"n": 5}]'),
        ('{"n":  5}', {"properties": {"n": {"type": "integer"}}}, '{"n":  5}'),
        # names of types that are not JSON schema's
        ("5", {"type": "str"}, '"5"'),
        ("{'b': 1}", {"type": "dict"}, '{"b": 1}'),
        ("5", {"type": "any"}, "5"),
    ],
)  # fmt: skip
def test_types(text, declared, json_text):  # P4
    assert typed(text, declared) == json_text
    json.loads(json_text)


def test_references():  # P4
    defs = {"count": {"type": "integer"}, "name": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}, "a/b": OBJECT}
    assert typed("'5'", {"$ref": "#/$defs/count"}, **{"$defs": defs}) == "\"'5'\""
    assert typed("True", {"$ref": "#/$defs/count"}, **{"$defs": defs}) == '"True"'
    assert typed("5", {"$ref": "#/$defs/name"}, **{"$defs": defs}) == '"5"'
    assert typed("5", {"$ref": "#/$defs/loop"}, **{"$defs": defs}) == "5"
    assert typed("{'b': 1}", {"$ref": "#/$defs/a~1b"}, **{"$defs": defs}) == '{"b": 1}'
    assert typed("5", {"$ref": "elsewhere.json"}) == "5"
    assert typed("5", {"$ref": "#/definitions/missing"}) == "5"
    assert typed("5", {"anyOf": [{"$ref": "#/definitions/name"}]}, definitions=defs) == '"5"'
    root = {"$ref": "#/$defs/all", "$defs": {"all": {"properties": {"a": {"type": "string"}}}}}
    assert Schema(root).read("a", "5") == '"5"'


def test_further_properties_may_be_declared_too():
    assert Schema({"additionalProperties": {"type": "string"}}).read("b", "5") == '"5"'
    assert Schema({"additionalProperties": False}).read("b", "5") == "5"
    assert Schema(None).read("b", "5") == "5"


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e309", "[1e999]", "{", "", "[" * 100_000])
def test_what_is_no_strict_json(text):
    with pytest.raises(ValueError, match=r"."):
        strict_json(text)


def test_a_repeated_key_keeps_its_first_value():  # P4
    text = "<tool_call>f" + "".join(f"<arg_key>a</arg_key><arg_value>{n}</arg_value>" for n in (1, 2)) + "</tool_call>"
    assert output_parser("glm47").parse(text).calls == [("f", '{"a": 1}')]
    coder = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n</parameter>\n</function>\n"
    assert output_parser("qwen3_coder").parse(coder + "</tool_call>").calls == [("f", '{"a": 1}')]
