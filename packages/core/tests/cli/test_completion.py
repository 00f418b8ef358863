"""Completion: bash runs the script and says what it would offer; all three scripts ask the same verb."""

import os
import shutil
import subprocess
import sys

import pytest
from kanawa.cli.main import main
from kanawa.cli.verbs import core_verbs
from kanawa.cli.verbs.completion import candidates

DONE = 'printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture
def offered(fake_distribution, tmp_path, capsys):
    """Returns a function from a typed line to what bash offers for its last word."""
    groups = {"kanawa.experiments": ["quick-job = json:loads"], "kanawa.modifiers": ["my-modifier = json:loads"]}
    site = fake_distribution("fake-names", groups)
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "kanawa.bash"
    script.write_text(capsys.readouterr().out)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}

    def complete(line):
        words = line.split(" ")
        typed = " ".join(f"'{word}'" for word in words)
        program = f"""
            kanawa() {{ {sys.executable} -m kanawa.cli "$@"; }}
            source {script}
            COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}
            _kanawa; {DONE}
        """
        command = ["bash", "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert not done.stderr, done.stderr
        return done.stdout.split()

    return complete


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash here")
@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("kanawa ker", ["kernels"]),
        ("kanawa show --wh", ["--why"]),
        ("kanawa show qui", ["quick-job"]),
        ("kanawa show x --modify my", ["my-modifier"]),
        ("kanawa kernels x --on cpu", ["cpu-1"]),
        ("kanawa new plugin x --kind modi", ["modifier"]),
        ("kanawa list modif", ["modifiers"]),
        ("kanawa completion fi", ["fish"]),
    ],
)
def test_bash_offers(offered, line, some):
    assert set(some) <= set(offered(line))


def test_every_verb_and_its_options_are_offered():
    offered = candidates([""])
    assert set(core_verbs()) <= set(offered)
    assert {"--why", "--diff", "--set", "--json"} <= set(candidates(["show", "quickstart", "-"]))
    assert candidates(["no-such-verb", ""]) == []


def test_after_a_flag_come_names_again(capsys):
    assert "kernels" in candidates(["list", "--json", ""])
    assert main(["completion", "--words", "completion", "--sh"]) == 0
    assert "--words" in capsys.readouterr().out.split()


def test_each_script_says_how_to_install_it(capsys):
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        assert f"kanawa completion {shell}" in capsys.readouterr().out


def test_the_bash_script_is_valid(tmp_path, capsys):
    main(["completion", "bash"])
    script = tmp_path / "kanawa.bash"
    script.write_text(capsys.readouterr().out)
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_no_shell_is_a_usage_error(capsys):
    assert main(["completion"]) == 2
    assert "completion needs a shell: bash, zsh, fish" in capsys.readouterr().err
