import json
import re
import xml.etree.ElementTree
from html.parser import HTMLParser

import pytest

from nemo_gym.rollouts.results import ResultsError, read
from nemo_gym.viewer.report import write_report
from nemo_gym.viewer.run import load
from tests.rollouts import stored

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7 * 7 }}"
VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """The elements of a page, with what is odd about them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = text
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.said: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.said).split())


def report(tmp_path, rows, failures=(), **manifest) -> Page:
    folder = stored.write(tmp_path / "job", rows, **manifest)
    (folder / "failures.jsonl").write_text("".join(json.dumps(one) + "\n" for one in failures))
    path = write_report([folder], tmp_path / "report.html")
    page = Page(path.read_text(encoding="utf-8"))
    assert page.open == []
    return page


def test_figures_and_turns(tmp_path):
    items = [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "I had better add."}]},
        stored.call("add", '{"a": 2, "b": 2}'),
        stored.output("4"),
        stored.message("It is four.", generation_token_ids=[1, 2, 3], generation_log_probs=[-0.1, -0.2, -0.3]),
    ]
    rows = [
        stored.row(0, 0, 1.0, items, category="sums"),
        stored.row(0, 1, 0.0, category="sums"),
        stored.row(1, 0, 1.0, category="weather"),
        stored.row(1, 1, 1.0, category="weather"),
    ]
    failure = {"kind": "timeout", "message": "not finished within 5 s", "_ng_task_index": 2, "_ng_rollout_index": 0}
    page = report(tmp_path, rows, [failure], run_id="the-run", input="/data/sums.jsonl")
    for words in (
        *(
            "the-run",
            "agent on sums.jsonl",
            "0.750",
            "pass@2 1.000",
            "pass^2 0.500",
            "1 timeout",
            "not finished within 5 s",
        ),
        *("I had better add.", 'calls add {"a": 2, "b": 2}', "tool result add 4", "reply 3 tokens It is four."),
        *("sums", "weather", "Task 0?", "task 0 earns 0.50 ± 0.71; its best"),
    ):
        assert words in page.words, words


def test_what_was_made_anew_is_no_failure(tmp_path):
    """Neither an attempt that was retried, nor one that an earlier start failed at and a later one did."""
    at = {"_ng_task_index": 0, "_ng_rollout_index": 0, "message": "busy"}
    failures = [
        at | {"kind": "model", "retried": True},
        at | {"kind": "agent", "retried": False},
        at | {"kind": "verifier", "_ng_task_index": 5, "message": "no reward"},
    ]
    page = report(tmp_path, [stored.row(0, 0, 1.0)], failures, stopped="enough is known")
    assert "Failures 1 1 verifier" in page.words
    assert "2 attempts failed and were made anew." in page.words
    assert "busy" not in page.words
    assert "Ended early, as told: enough is known" in page.words


def test_nothing_of_a_rollout_is_markup(tmp_path):
    """Every place where a stranger's text can stand, tried at once."""
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": EVIL}]},
        stored.call(EVIL, EVIL),
        stored.output(EVIL),
        {"type": EVIL, EVIL: EVIL},
        EVIL,
        stored.message(EVIL),
    ]
    rows = [
        stored.row(
            task, n, reward, items, category=EVIL, note=EVIL, agent_ref={"name": f"{EVIL}{task}"}, **{EVIL: EVIL}
        )
        for task, n, reward in ((0, 0, 1.0), (0, 1, 0.0), (1, 0, 0.5), (2, 0, 0.5), (3, 0, 0.0), (4, 0, 1.0))
    ]
    for row in rows:
        row["responses_create_params"]["input"] = [{"role": EVIL, "content": EVIL}, {"role": "user", "content": EVIL}]
        row["responses_create_params"]["instructions"] = EVIL
        row["response"]["model"] = EVIL
        row["_ng_rollout"]["incomplete"] = EVIL
    failures = [{"kind": EVIL, "message": EVIL, "_ng_task_index": EVIL}]
    page = report(tmp_path, rows, failures, run_id=EVIL, input=EVIL, versions={EVIL: EVIL})
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert EVIL in page.words
    assert "49" not in page.words


def test_it_needs_nothing_else(tmp_path):
    rows = [stored.row(0, 0, 1.0, [stored.message("See https://example.org/a.png")]), stored.row(1, 0, 0.0)]
    page = report(tmp_path, rows)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    outward = [value for name, value in page.attributes if name in ("href", "src", "action", "xlink:href")]
    assert all(value.startswith("#") for value in outward)
    css = page.text[page.text.index("<style>") : page.text.index("</style>")]
    assert "url(" not in css
    assert "@import" not in css
    assert "default-src 'none'" in page.text
    assert "prefers-color-scheme: dark" in css


def test_every_chart_says_what_it_shows(tmp_path):
    rows = [stored.row(task, n, float(n < task), category="ab"[task % 2]) for task in range(3) for n in range(3)]
    page = report(tmp_path, rows)
    charts = re.findall(r'<svg class="chart".*?</desc>', page.text)
    assert len(charts) >= 6
    ids = re.findall(r' id="([^"]+)"', page.text)
    assert len(ids) == len(set(ids))
    for chart in charts:
        labelled = re.search(r'role="img" aria-labelledby="(\S+) (\S+)"', chart)
        title = re.search(rf'<title id="{labelled[1]}">(.+?)</title>', chart)
        described = re.search(rf'<desc id="{labelled[2]}">(.+?)</desc>', chart)
        assert title[1]
        assert described[1]
    for whole in re.findall(r'<svg class="chart".*?</svg>(?=</figure>|\s*<details|</figure>)', page.text, re.S):
        xml.etree.ElementTree.fromstring(whole)
    for place in re.findall(r'(?:x|cx|width|y|height)="(-?[\d.]+|nan|inf)%?"', page.text):
        assert -1000 < float(place) < 1e6


@pytest.mark.parametrize(
    "rewards",
    [{0: [0.0]}, {0: [1.0], 1: [1.0]}, {0: [-2.0, -1.0], 1: [-3.0]}, {0: [1e12, 0.0]}, {0: [0.25] * 40, 1: [0.5] * 40}],
)
def test_rewards_of_any_kind(tmp_path, rewards):
    page = report(tmp_path, [stored.row(t, n, value) for t, own in rewards.items() for n, value in enumerate(own)])
    assert "nan" not in page.text.lower().replace("nancy", "")


def test_only_masked_rollouts(tmp_path):
    page = report(tmp_path, [stored.row(0, 0, 0.0, mask_sample=True)])
    assert "1 masked" in page.words


def test_rows_of_any_shape(tmp_path):
    """A row needs a task and a reward; whatever else is there is shown as it is."""
    odd = [
        {"_ng_task_index": 0, "reward": 0},
        {"_ng_task_index": 1, "reward": 1, "response": {"output": []}, "responses_create_params": {"input": "Say hi"}},
        stored.row(
            2, 0, 0.5, [{"type": "reasoning", "encrypted_content": "x"}, {"role": "assistant", "content": None}]
        ),
        stored.row(
            3,
            0,
            0.5,
            [{"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:x"}, 7]}],
        ),
        stored.row(4, 0, 0.5, [stored.call("f", '{"long": "' + "y" * 90 + '"}'), stored.call("g", "[" * 5000)]),
        stored.row(5, 0, 0.5, responses_create_params=[], response={"output": [], "error": {"code": "server_error"}}),
        stored.row(6, 0, 0.5, [stored.message("\ud800 \x00 \u202e")]),
    ]
    page = report(tmp_path, odd)
    for words in ("Say hi", "(encrypted)", "(input_image, 6 characters)", "server_error"):
        assert words in page.words


def test_it_is_bounded(tmp_path):
    """Long texts are cut, long conversations shortened, and few of many rollouts shown."""
    turns = [stored.message(f"turn {n} " + "x" * 20_000) for n in range(200)]
    rows = [stored.row(task, 0, float(task % 7 == 0), turns if task < 30 else None) for task in range(400)]
    page = report(tmp_path, rows)
    assert "141 turns left out" in page.words  # the question is one more
    assert re.search(r"15,5\d\d characters left out", page.words)
    assert page.tags.count("li") < 20 * 62
    assert len(page.text) < 12_000_000


def test_a_report_is_not_replaced_unasked(tmp_path):
    folder = stored.run_of(tmp_path / "job", {0: [1.0]})
    path = write_report([folder], tmp_path / "report.html")
    with pytest.raises(ResultsError, match="is there already"):
        write_report([folder], path)
    assert write_report([folder], path, overwrite=True) == path


def test_who_is_chosen(tmp_path):
    rewards = {0: [0, 0, 0], 1: [1, 1, 1], 2: [0, 1, 1], 3: [1, 0, 0], 4: [0, 0, 1]}
    folder = stored.run_of(tmp_path, {task: list(map(float, own)) for task, own in rewards.items()})
    run = load([folder], read([folder]))

    def chosen(rollouts):
        return [(one.result.task, one.result.reward) for one in rollouts]

    assert chosen(run.uncertain) == [(2, 1), (2, 0), (3, 1), (3, 0), (4, 1), (4, 0)]
    assert chosen(run.worst) == [(0, 0)]
    assert chosen(run.best) == [(1, 1)]


def test_without_repeats_the_improbable_is_uncertain(tmp_path):
    rows = [
        stored.row(task, 0, 1.0, [stored.message("x", generation_log_probs=[-float(task)])]) for task in range(1, 4)
    ]
    run = load([folder := stored.write(tmp_path, rows)], read([folder]))
    assert [one.result.task for one in run.uncertain] == [3, 2, 1]
    assert run.uncertain[0].why == "its tokens were improbable: log-prob -3.00 on average"
