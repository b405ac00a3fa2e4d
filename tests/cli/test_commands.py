"""The commands that start nothing."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nemo_gym import __version__
from nemo_gym.cli import collect, config, main
from tests import project


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(project.make(tmp_path))
    return tmp_path


FILES = "+config_paths=[run.yaml]"


def test_dump_masks_secrets(folder, capsys, monkeypatch):
    monkeypatch.setenv("NG_ORG", "organisation-42")
    (folder / "env.yaml").write_text("my_token: t0ken-value\n")
    args = [FILES, "++env.resources_servers.tiny.description='${oc.env:NG_ORG}'", "++note='with ${my_token}'"]
    assert config.dump_main(args) == 0
    plain = capsys.readouterr().out
    dumped = yaml.safe_load(plain)
    assert dumped["env"]["resources_servers"]["tiny"]["api_key"] == "****"
    assert dumped["note"] == "with ****"
    assert dumped["policy_model"]["responses_api_models"]["local_tiny"]["model"] == "weights"
    for secret in ("s3cr3t-value", "organisation-42", "t0ken-value"):
        assert secret not in plain
    assert config.dump_main([*args, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == dumped


def test_validate(folder, capsys):
    assert config.validate_main([FILES]) == 0
    assert capsys.readouterr().out == "no faults: 2 servers\n"
    faulty = [FILES, "++env.resources_servers.tiny.siez=1", "++env.resources_servers.tiny.size=x"]
    assert config.validate_main(faulty) == 2
    err = capsys.readouterr().err
    assert "siez" in err
    assert "size: expected a whole number" in err
    assert err.endswith("2 faults\n")
    assert config.validate_main([*faulty, "--json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert [problem["key"].rpartition(".")[2] for problem in told["problems"]] == ["size", "siez"]
    assert not any(name.startswith("results") for name in os.listdir(folder))


def test_a_file_in_the_place_of_an_override_is_told_how_it_is_named(folder, capsys):
    assert config.validate_main(["run.yaml"]) == 2
    assert 'expected key=value; a file is named as "+config_paths=[run.yaml]"' in capsys.readouterr().err
    (folder / ".hidden.yaml").write_text("a: 1")
    assert config.validate_main(["+config_paths=[nowhere.yaml]"]) == 2
    told = capsys.readouterr().err
    assert "run.yaml" in told
    assert ".hidden.yaml" not in told


@pytest.mark.parametrize("text", ["", "# nothing but words\n"])
def test_a_configuration_without_keys_is_none(folder, capsys, text):
    (folder / "empty.yaml").write_text(text)
    said = "empty.yaml: has no keys: expected servers, each under a name of its own\n"
    assert config.dump_main(["+config_paths=[empty.yaml]"]) == 2
    assert capsys.readouterr() == ("", said)
    assert config.validate_main(["+config_paths=[empty.yaml]"]) == 2
    assert capsys.readouterr().err == f"{said}1 fault\n"
    assert config.dump_main(["+config_paths=[empty.yaml,run.yaml]"]) == 0  # beside others it says nothing more
    capsys.readouterr()
    assert config.dump_main([]) == 2
    assert 'nothing is configured: pass "+config_paths=' in capsys.readouterr().err


def test_keys_that_a_job_on_running_servers_lacks_are_told_as_they_are_said(folder, capsys):
    assert collect.main([]) == 2
    assert capsys.readouterr().err == "+output: is required\n"
    assert collect.main(["+output=", "+input="]) == 2
    assert capsys.readouterr().err == "+input: expected a path, got ''\n+output: expected a path, got ''\n"
    (folder / "held").mkdir()
    (folder / "held/rollouts.jsonl").write_text("{}\n")
    (folder / "rows.jsonl").write_text('{"responses_create_params": {"input": "x"}}\n')
    assert collect.main(["+agent=a", "+input=rows.jsonl", f"+output={folder}/held"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("+output: ") and "set +resume=true to finish it, or +overwrite=true to remove" in said
    assert collect.main(["++job.repeats=x"]) == 2
    assert "job.output: is required" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_reader_that_has_gone_ends_a_command_in_silence(folder, flags):
    reads, writes = os.pipe()
    os.close(reads)
    command = f"import sys; from nemo_gym.cli.config import dump_main; sys.exit(dump_main({[FILES, *flags]}))"
    try:
        ended = subprocess.run([sys.executable, "-c", command], stdout=writes, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writes)
    assert (ended.returncode, ended.stderr) == (0, b"")


COMMANDS = ["ng", "ng_run", "ng_collect_rollouts", "ng_reverify", "ng_prepare_data", "ng_validate", "ng_serve"]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize("name", COMMANDS)
def test_so_does_help(name):
    reads, writes = os.pipe()
    os.close(reads)
    try:
        ended = subprocess.run([BIN / name, "--help"], stdout=writes, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writes)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_ctrl_c_needs_no_words():
    command = (
        "import signal, sys, time; from nemo_gym.cli.pipe import ends_in_order\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def waits(): print('up', flush=True); time.sleep(60); return 0\n"
        "sys.exit(ends_in_order(waits)())"
    )
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert (process.wait(), process.stderr.read()) == (130, b"")


def test_a_full_disk_is_told_and_a_closed_output_is_not(folder):
    with open("/dev/full", "w") as full:
        ended = subprocess.run([BIN / "ng_dump_config", FILES], stdout=full, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (1, b"standard output: No space left on device\n")
    closed = f"exec {BIN}/ng_dump_config '{FILES}' >&-"
    ended = subprocess.run(["/bin/sh", "-c", closed], stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_letter_that_the_terminal_lacks_is_written_as_its_number(folder):
    command = [BIN / "ng_dump_config", FILES, "++note='ä …'", "--json"]
    environ = os.environ | {"PYTHONIOENCODING": "latin-1"}
    out = subprocess.run(command, stdout=subprocess.PIPE, env=environ, check=True).stdout
    assert json.loads(out.decode("latin-1"))["note"] == "ä …"
    assert b'"\xe4 \\u2026"' in out


@pytest.mark.parametrize(
    ("given", "like"),
    [
        ("+config_paths=[ä b.yaml, c.yaml]", "+config_paths=['ä b.yaml','c.yaml']"),
        ("++job.input=größe.jsonl", "++job.input='größe.jsonl'"),
    ],
)
def test_what_needs_quotes_is_shown_with_them(folder, capsys, given, like):
    assert config.validate_main([given]) == 2
    said = f'command line: {given}: expected quotes where a value has special characters: "{like}"\n'
    assert capsys.readouterr().err.startswith(said)
    config.validate_main([like])
    assert "expected quotes" not in capsys.readouterr().err


def test_status_takes_no_argument(capsys):
    assert main.main(["status", "my-run"]) == 2
    assert "ng_status takes no argument, got my-run" in capsys.readouterr().err


def test_ng_finds_commands(capsys):
    assert main.main(["--help"]) == 0
    assert "dump_config" in capsys.readouterr().out
    assert main.main(["version"]) == 0
    assert capsys.readouterr().out.strip() == __version__
    assert main.main(["statsu"]) == 2
    assert "did you mean 'status'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["run", "serve", "doctor", "status", "validate", "dump_config", "collect_rollouts"])
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main.main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: ng_{name}")


def test_unknown_option(capsys):
    with pytest.raises(SystemExit) as ended:
        main.main(["status", "--jsno"])
    assert ended.value.code == 2
    assert "--jsno is not an option; there is --json" in capsys.readouterr().err
