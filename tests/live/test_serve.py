"""`ng_serve` in one line, and real agents with nothing but what it printed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_gym.agent_server import install
from nemo_gym.capture import CaptureStore
from tests.live.conftest import Listening
from tests.live.test_clients import PLAN, PROMPT
from tests.player import Player
from tests.project import World
from tests.scripted import ScriptedBackend

pytestmark = [pytest.mark.live, pytest.mark.ci]

NOWHERE = "http://127.0.0.1:9"
HEADS = re.compile(r"^(Codex|OpenClaw|Claude Code|OpenAI SDK|Anthropic SDK)  .*$", re.M)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], Path]]:
    """Client -> the text to paste, and where calls are recorded."""
    world = World(tmp_path_factory.mktemp("serve"))
    captures = world.folder / "captures"
    with Listening(ScriptedBackend(Player(PLAN))) as url:
        process = world.start(
            *("serve", "--upstream", url, "--model", "scripted-model", "--port", "0", "--captures", str(captures))
        )
        try:
            said = world.until_up(process)
            pieces = HEADS.split(said.partition("\nEach task")[0])
            yield {name: text.strip() for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}, captures
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
            world.end()


def ran(client: str, folder: Path, arguments: list[str], before: str = "") -> subprocess.CompletedProcess[str]:
    """The published client, headless; `before` is shell that a person would have pasted."""
    (folder / "work").mkdir()
    program = asyncio.run(install.command(client))
    environment = {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "NODE_COMPILE_CACHE": str(install.cache_folder() / "compiled"),
        "HTTP_PROXY": NOWHERE,
        "HTTPS_PROXY": NOWHERE,
        "NO_PROXY": "127.0.0.1,localhost",
        "IS_SANDBOX": "1",
    }
    return subprocess.run(
        ["bash", "-c", before + '\nexec "$@"', "bash", *program, *arguments, PROMPT],
        cwd=folder / "work",
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
    )


def finished(ended: subprocess.CompletedProcess[str], folder: Path, captures: Path, dialect: str) -> None:
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert (folder / "work" / "note.txt").read_text() == "written by a tool"
    calls = [call for call in CaptureStore(captures).calls("task-1") if call.dialect == dialect]
    assert len(calls) >= 2
    assert {call.status for call in calls} == {"answered"}


def test_codex(printed: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    texts, captures = printed
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text(texts["Codex"])
    arguments = ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    finished(ran("codex", tmp_path, arguments), tmp_path, captures, "responses")


def test_openclaw(printed: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    texts, captures = printed
    (tmp_path / "openclaw.json").write_text(texts["OpenClaw"])
    flags = ["--config", f"{tmp_path}/openclaw.json", "--cwd", f"{tmp_path}/work", "--json"]
    finished(ran("openclaw", tmp_path, ["agent", "exec", *flags]), tmp_path, captures, "chat")


def test_claude_code(printed: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    texts, captures = printed
    *exports, command = texts["Claude Code"].splitlines()
    assert command.startswith("claude --model ")
    flags = ["-p", "--output-format", "json", "--dangerously-skip-permissions", *command.split()[1:]]
    finished(ran("claude-code", tmp_path, flags, "\n".join(exports)), tmp_path, captures, "messages")


def test_the_sdks(printed: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    texts, _ = printed
    code = (
        "import openai, anthropic\n"
        "said = [{'role': 'user', 'content': 'Hi'}]\n"
        "print(openai.OpenAI().chat.completions.create(model='m', messages=said).choices[0].message.content)\n"
        "print(anthropic.Anthropic().messages.create(model='m', max_tokens=9, messages=said).content[0].text)\n"
    )
    pasted = texts["OpenAI SDK"] + "\n" + texts["Anthropic SDK"]
    ended = subprocess.run(
        ["bash", "-c", pasted + '\nexec "$@"', "bash", sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert len(ended.stdout.splitlines()) == 2
