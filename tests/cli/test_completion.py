"""Shell completion: the scripts, and what they suggest."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from regard.cli.completion import SHELLS
from regard.cli.verbs import regard


def complete(words: str) -> list[str]:
    """Return the completions of a command line, in a process that would print if torch were imported."""
    program = (
        "import sys, atexit; atexit.register(lambda: print('torch' if 'torch' in sys.modules else ''));"
        "from regard.cli import main; sys.argv = ['regard']; main()"
    )
    variables = {"_REGARD_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_printed_for_each_shell(shell: str) -> None:
    done = CliRunner().invoke(regard, ["completion", shell])
    assert done.exit_code == 0
    assert f"_REGARD_COMPLETE={shell}_complete" in done.stdout


def test_another_shell_is_rejected_with_the_known_ones() -> None:
    done = CliRunner().invoke(regard, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in done.stderr


def test_commands_options_and_files_are_suggested_without_torch() -> None:
    assert complete("regard ev") == ["plain,evaluate"]
    assert complete("regard align --symm") == ["plain,--symmetrize"]
    assert complete("regard predict runs/d") == ["file,runs/d"]
