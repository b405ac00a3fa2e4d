"""What the page on the export says of names and columns holds in the code."""

import re
from pathlib import Path

from nemo_gym.capture.record import INCOMPLETE
from nemo_gym.export.formats import FORMATS
from nemo_gym.export.formats.token_rows import CARD, SCHEMA
from nemo_gym.export.ledger import COLUMNS
from nemo_gym.export.options import ADVANTAGES, BRANCHES, INCLUDABLE
from nemo_gym.rollouts.job import OF_TOKENS

PAGE = (Path(__file__).parents[2] / "fern" / "pages" / "export.mdx").read_text()


def test_the_columns_are_those_of_the_schema() -> None:
    table = CARD[CARD.index("| column |") :].strip()
    assert table in PAGE
    assert re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:])) == SCHEMA.names


def test_every_format_and_option_is_told() -> None:
    assert [name for name in FORMATS if f"| `{name}` |" not in PAGE] == []
    assert [name for name in BRANCHES if f"| `{name}` |" not in PAGE] == []
    assert [name for name in ADVANTAGES if f"`{name}`" not in PAGE and f"--advantage {name}" not in PAGE] == []
    assert [name for name in INCLUDABLE if f"`--include {name}`" not in PAGE] == []
    assert [name for name in INCOMPLETE if name not in PAGE] == []


def test_what_an_expression_may_name_is_told() -> None:
    figures = set(COLUMNS) - {
        "id",
        "masked",
        "sealed",
        "incomplete",
        "rows",
        "oldest",
        "raw",
        "reason",
        "advantage",
        "done",
    }
    assert [name for name in sorted(figures - {"row"}) if f"`{name}`" not in PAGE] == []


def test_the_exports_that_need_token_ids_are_known_to_a_job() -> None:
    assert {name for name, one in FORMATS.items() if one.needs_tokens} == set(OF_TOKENS)
