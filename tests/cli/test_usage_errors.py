"""Wrong options and arguments are one line with exit code 2."""

from __future__ import annotations

import pytest

from tests.cli import script


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("token", "revoke", "laptop"), "clew token revoke: number laptop: expected a whole number; see clew token"),
        (("token", "revoke"), "clew token revoke: missing argument 'number'; see clew token revoke --help"),
        (("submit", "tracking", "--epochs", "x"), "clew submit: --epochs x: expected a whole number; see clew submit"),
        (("submit", "tracking", "--priority", "500"), "clew submit: --priority 500: input should be less than"),
        (("jobs", "--agent"), "clew jobs: no such option: --agent (Possible options: --agents); see clew jobs --help"),
        (("submti",), "clew: no such command 'submti'"),
        (
            ("bench", "scale", "tracking", "--strategy", "allredce"),
            "--strategy allredce: no such name; did you mean 'allreduce'?",
        ),
        (("bench", "particleflow", "--precision", "bf61"), "--precision bf61: precision: input should be 'float32'"),
        (("train", "--dataset"), "option '--dataset' requires an argument; see --help"),
    ],
)
def test_a_wrong_option_is_one_line(words: tuple[str, ...], expected: str) -> None:
    outcome = script(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"clew: {expected}") and outcome.err.count("\n") == 1, outcome.err


def test_a_group_without_a_command_shows_its_help() -> None:
    outcome = script("token")
    assert outcome.code == 2 and "Usage: clew token" in outcome.out
