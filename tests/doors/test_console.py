"""The command ``grok``: what it lists, whose modules it takes, and how commands end."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from grok.__main__ import COMMANDS, main
from grok.commands.command import command
from grok.config import MODES
from grok.config.fields import settings_of
from grok.errors import ConfigError, TrainingError
from grok.terminal import one_line, readable_output
from tests.doors.conftest import environment

EVERY = {name: entry for group in COMMANDS.values() for name, entry in group.items()}


def test_an_unknown_word_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["swep"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: 'swep' is no command of grok, did you mean 'sweep'?")
    assert error.count("\n") == 1


def test_help_needs_no_torch() -> None:
    names = list(EVERY)
    code = (
        "import sys\nfrom grok.__main__ import main\n"
        f"for name in {names}:\n"
        "    assert main([name, '--help']) == 0, name\n"
        "    assert 'torch' not in sys.modules, name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in names:
        assert f"usage: grok {name} " in done.stdout or f"\n       grok {name} " in done.stdout, name


@pytest.mark.parametrize("mode", MODES)
def test_help_says_what_each_setting_means_and_takes(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help", f"mode={mode}"]) == 0
    usual = [line for line in capsys.readouterr().out.splitlines() if re.match(r"  [a-z_.]+=[^ ]+ +", line)]
    assert sum(line.partition("=")[0].strip() not in ("experiment", "sweep") for line in usual) == 15
    assert main(["run", "--help", "all", f"mode={mode}"]) == 0
    text = " " + " ".join(capsys.readouterr().out.split())
    for name, (_, rule) in settings_of(MODES[mode]).items():
        assert f" {name}=" in text
        assert " ".join(rule.doc.split()) in text


def test_help_can_be_narrowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help", "warmup"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("  optim.warmup_steps=10")
    assert len(lines) < 6


@pytest.mark.parametrize("words", [["--store", "S"], ["--store=S"], ["store.path=S"]])
def test_a_store_is_named_the_same_way_where_settings_are_given(
    words: Sequence[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "seed=1,2", "dry_run=true", *words]) == 0
    assert "The store would be S." in capsys.readouterr().out
    assert main(["search", "study=quickstart", "dry_run=true", *words]) == 0
    assert "The study would be in S/search." in capsys.readouterr().out


class TestEnd:
    @staticmethod
    def ending(error: BaseException) -> int:
        @command(interrupted="nothing is lost")
        def body(argv: list[str]) -> int:
            raise error

        return body([])

    @pytest.mark.parametrize(
        ("error", "status", "line"),
        [
            (ConfigError("no\n such thing"), 2, "error: no such thing"),
            (TrainingError("lost"), 1, "error: lost"),
            (KeyboardInterrupt(), 1, "Interrupted: nothing is lost"),
        ],
    )
    def test_one_line(
        self, error: BaseException, status: int, line: str, capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        assert self.ending(error) == status
        assert capsys.readouterr() == ("", f"{line}\n")

    def test_a_mistake_of_ours_keeps_its_traceback(self) -> None:
        with pytest.raises(ZeroDivisionError):
            self.ending(ZeroDivisionError())

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
    @pytest.mark.parametrize("lost", [False, True])
    def test_a_signal_ends_it_as_ctrl_c_does(self, lost: bool, number: int, capsys: pytest.CaptureFixture[str]) -> None:
        before = signal.getsignal(number)

        @command()
        def body(argv: list[str]) -> int:
            try:
                os.kill(os.getpid(), number)
                return signal.pause() or 0
            finally:
                assert not lost, "what cleans up in other code may fail on its part, and then the request is lost"

        assert body([]) == 1
        assert capsys.readouterr().err.startswith("Interrupted: ")
        assert signal.getsignal(number) is before


def test_nothing_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A word of the command, or a text of somebody else's store."""
    with readable_output():
        print("a\x1b[2J\x1b]0;b\x07\x1b[31mred\x1b[0m\tc\u202e\x1b[8mhidden\x1b[30;40m", file=sys.stderr)
        print(f"warning: {one_line('a' + chr(8) + 'b' + chr(27) + '[31m')}", file=sys.stderr)
    said = capsys.readouterr().err
    assert said == (
        "a\\x1b[2J\\x1b]0;b\\x07\x1b[31mred\x1b[0m\tc\\u202e\\x1b[8mhidden\\x1b[30;40m\nwarning: a\\x08b\\x1b[31m\n"
    )
