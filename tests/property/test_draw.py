"""The command that draws for one's own use: ``python tests/property/draw.py``."""

import re

import draw
from random_models.judge import Outcome
from random_models.seeds import first_seed


def test_draws_name_their_first_seed_and_end_with_what_became_of_them(capsys):
    assert draw.main(["2", "--first", str(first_seed())]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == f"2 draws; to repeat them: python tests/property/draw.py 2 --first {first_seed()}"
    assert last == "wrong seeds: none"


def test_without_a_first_seed_they_begin_with_the_clock(capsys):
    draw.main(["0"])
    before = int(re.search(r"--first (\d+)", capsys.readouterr().out)[1])
    draw.main(["0"])
    assert 1_700_000_000_000 < before <= int(re.search(r"--first (\d+)", capsys.readouterr().out)[1])


def test_a_wrong_draw_is_shown_with_the_command_that_makes_it_smaller_and_the_exit_code_is_1(capsys, monkeypatch):
    monkeypatch.setattr("random_models.seeds.judge", lambda _: Outcome("wrong", detail="'h0' differs"))
    assert draw.main(["2", "--first", "5"]) == 1
    out = capsys.readouterr().out
    assert "seed 5: wrong" in out
    assert "python -m random_models 6 --shrink" in out
    assert out.splitlines()[-1] == "wrong seeds: 5 6"
