"""A fixed sample of ``make sweep-fuzz``, in a child process as there."""

from __future__ import annotations

SEQUENCES = 120


def test_random_sequences_never_crash_or_hang() -> None:
    from sweeps.fuzz.report import Tally
    from sweeps.fuzz.runner import run_range

    tally = Tally()
    run_range(0, SEQUENCES, 1, tally)
    assert (tally.crashes, tally.hangs) == ([], [])
    assert tally.sequences == SEQUENCES
    assert tally.lazy > SEQUENCES


def test_program_of_a_seed_is_always_the_same() -> None:
    from sweeps.fuzz.generator import generate

    assert str(generate(5)) == str(generate(5))
    assert str(generate(5)) != str(generate(6))


def test_shrinking_keeps_what_shows_the_difference() -> None:
    from sweeps.fuzz.generator import generate
    from sweeps.fuzz.shrink import shrink

    program = generate(3)
    kept = next(step for step in program.steps if step.op != "make")
    short = shrink(program, lambda shorter: kept in list(shorter.steps))
    assert list(short.steps) == [kept]
