"""Clock, ids and errors: small things that everything else relies on."""

import threading
import time

import pytest

from slipstream.core.clock import ManualClock, SystemClock
from slipstream.core.errors import ConfigError, Problem, RunFailed, SlipstreamError, TransitionError, UsageError, near_names
from slipstream.core.ids import checkpoint_name, group_id, random_run_id, ticket_id


def test_the_system_clock_starts_where_earlier_starts_ended_and_never_goes_back() -> None:
    before = time.monotonic()
    clock = SystemClock(offset_s=100.0)
    readings = [clock.now_s() for _ in range(1_000)]
    assert readings == sorted(readings)
    assert 100.0 <= readings[0] <= readings[-1] <= 100.0 + time.monotonic() - before


def test_the_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(5.0)
    clock.advance(0.0)
    assert clock.now_s() == 5.0
    threads = [threading.Thread(target=lambda: [clock.advance(1.0) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now_s() == 2_005.0
    with pytest.raises(ValueError, match="cannot go back by 1"):
        clock.advance(-1.0)


def test_ids_sort_as_their_numbers_do() -> None:
    numbers = [0, 9, 10, 99, 100, 123_456]
    for name in (ticket_id, group_id, checkpoint_name):
        assert sorted(map(name, numbers)) == [name(number) for number in numbers]
    assert (ticket_id(7), group_id(7), checkpoint_name(7)) == ("t00000007", "g00000007", "000007")


def test_run_ids_are_twelve_hex_digits_and_differ() -> None:
    ids = {random_run_id() for _ in range(1_000)}
    assert len(ids) == 1_000
    assert all(len(name) == 12 and int(name, 16) >= 0 for name in ids)


def test_exit_codes_are_two_for_usage_and_one_for_failure() -> None:
    assert {error.exit_code for error in (UsageError, ConfigError)} == {2}
    assert {error.exit_code for error in (SlipstreamError, RunFailed, TransitionError)} == {1}


def test_a_configuration_error_tells_every_problem() -> None:
    one = Problem(field="run.steps", value="0", fix="at least 1")
    two = Problem(field="mode.kind", value="'x'", fix="choose")
    assert str(ConfigError([one])) == "1 configuration problem:\n  run.steps = 0: at least 1"
    assert str(ConfigError(problem for problem in (one, two))) == (
        "2 configuration problems:\n  run.steps = 0: at least 1\n  mode.kind = 'x': choose"
    )
    assert ConfigError([one, two]).problems == (one, two)


def test_near_names_offers_what_is_close_or_else_everything() -> None:
    assert near_names("digitz", ["digits", "held_out"]) == "did you mean digits?"
    assert near_names("zzz", ["b", "a"]) == "known: a, b"
    assert near_names("zzz", []) == "known: "
