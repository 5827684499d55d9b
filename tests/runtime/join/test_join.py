"""What a worker keeps up beside its work: its lease, its events, its secrets; and partial samples on their way to somebody else."""

import ssl
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.clock import ManualClock
from slipstream.core.errors import RunFailed, UsageError
from slipstream.core.records import Partial, Progress, Standing
from slipstream.runtime.coordinator.tls import server_context
from slipstream.runtime.join.address import Address, JoinSettings, secret
from slipstream.runtime.join.caller import Caller
from slipstream.runtime.join.events import RemoteEvents
from slipstream.runtime.join.ledger import RemoteLedger
from slipstream.runtime.join.renewer import Renewer
from slipstream.runtime.join.watch import NewsWatch
from slipstream.telemetry.jsonl import read_jsonl
from tests.runtime.coordinator.here import INFLIGHT, LEASE_S, TOKEN, caller, claimed, coordinator, remote, seat
from tests.runtime.coordinator.test_coordinator import publish, rollouts_of

PATIENCE_S = 30.0  # a deadline for hung threads, not a performance check


def test_a_renewer_tells_how_far_the_worker_is_and_hears_what_is_wanted(tmp_path: Path) -> None:
    with coordinator(tmp_path, INFLIGHT) as here:
        one = seat(here.url)
        one.joined = one.joined.model_copy(update={"lease_s": 0.03})  # so that a third of it is soon over
        changes, heard = [], threading.Event()
        told = Progress(tokens=7, last_token_s=0.25, last_load_s=3.0, phase="generate")
        renewer = Renewer(one, lambda: told, lambda: {"tokens": 7, "wait_s": 1.5}, lambda: (changes.append(renewer.standing), heard.set()))
        renewer.start()
        assert heard.wait(PATIENCE_S)
        assert renewer.standing == Standing(newest=0, oldest=0, lineage=0, drain=False, stop=False)
        assert here.ledger.progress() == {"sampler-0": told}
        heard.clear()
        here.ledger.drain("sampler-0")
        assert heard.wait(PATIENCE_S)
        assert changes[-1].drain
        heard.clear()
        here.clock.advance(LEASE_S + 1)
        here.expire()
        assert heard.wait(PATIENCE_S)
        assert renewer.stale
        heard.clear()
        one.joined = one.rejoin(one.joined.epoch).model_copy(update={"lease_s": 0.03})
        assert heard.wait(PATIENCE_S)  # it renews the new epoch's lease, whoever joined anew
        assert not renewer.stale
        assert changes[-1] == Standing(newest=0, oldest=0, lineage=0, drain=False, stop=False)
        renewer.check()
        renewer.end()


def test_events_arrive_once_and_in_order_though_answers_get_lost(tmp_path: Path) -> None:
    with coordinator(tmp_path) as here:
        made = caller(here.url)
        one = seat(here.url, made=made)
        exchange, lost = made._exchange, threading.Event()

        def once(*arguments):
            answer = exchange(*arguments)
            if not lost.is_set():
                lost.set()
                raise TimeoutError("the answer was lost")
            return answer

        made._exchange = once  # type: ignore[method-assign]
        events = RemoteEvents(one, ManualClock(5.0))
        for number in range(3):
            events.emit("sampler-0", "load", version=np.int32(number), share=float("nan"))
        events.span("sampler-0", "wait", 1.0, 2.0)
        events.emit("sampler-0", "odd", time=-1, kinds="x")
        events.start()
        events.end(PATIENCE_S)
        events.check()
        assert lost.is_set()
        rows = [row for row in read_jsonl(tmp_path / "events.jsonl") if row["role"] == "sampler-0"]
        assert [row.get("version") for row in rows[:3]] == [0, 1, 2]
        assert rows[0] == {"time": 5.0, "role": "sampler-0", "kind": "load", "version": 0, "share": None}
        assert rows[3] == {"time": 5.0, "role": "sampler-0", "kind": "span", "phase": "wait", "start": 1.0, "end": 2.0}
        assert rows[4]["time"] == 5.0  # a field cannot pass for when it happened
        assert len(rows) == 5


def test_news_wake_whoever_waits(tmp_path: Path) -> None:
    with coordinator(tmp_path) as here:
        learner, sampler = remote(seat(here.url, "learner", "L")), remote(seat(here.url))
        learner.begin(0)
        heard = []
        watch = NewsWatch(sampler, heard.append)
        watch.start()
        while not heard:
            sampler.wait_change(0, PATIENCE_S)
        seen = sampler.sequence
        publish(learner, 0)
        assert sampler.wait_change(seen, PATIENCE_S)
        assert [one.version for one in heard[-1].announcements] == [0]
        watch.end()
        watch.check()


def test_partial_samples_reach_the_next_claimer_to_the_bit(tmp_path: Path) -> None:
    with coordinator(tmp_path, INFLIGHT) as here:
        leaving, other = seat(here.url, name="leaving"), remote(seat(here.url, name="other"))
        (ticket,) = claimed(remote(leaving), 1)
        partial = Partial(
            ticket_index=ticket.index,
            sample=1,
            completion_ids=np.array([5, 6, 7], np.int32),
            logprobs=np.array([-0.1, -1 / 3, -7.0e-9], np.float32),
            versions=np.array([0, 0, 0], np.int32),
        )
        remote(leaving).save_progress([partial], patience_s=1.0)
        leaving.leave(1.0)
        (again,) = claimed(other, 1)
        (found,) = again.partials
        assert (again.index, found.ticket_index, found.sample) == (ticket.index, ticket.index, 1)
        for name in ("completion_ids", "logprobs", "versions"):
            np.testing.assert_array_equal(getattr(found, name), getattr(partial, name), strict=True)
        assert other.submit(rollouts_of([again])) == ["accepted", "accepted"]


def test_addresses_and_secrets_that_are_none(tmp_path: Path) -> None:
    for url in ("host:80", "ftp://host", "http://", "http://host:port", "http://host/path"):
        with pytest.raises(UsageError, match="not the address of a coordinator"):
            Address(url=url)
        with pytest.raises(UsageError, match="--advertise worker:1: not an address to serve weights at"):
            JoinSettings(address=Address(url="http://127.0.0.1:1"), advertise="worker:1")
    file = tmp_path / "token"
    with pytest.raises(UsageError, match="cannot be read"):
        secret(file)
    for text in ("", "two\nlines", "schlüssel"):
        file.write_text(text)
        with pytest.raises(UsageError, match="holds no token"):
            secret(file)
    file.write_text("plain\n")
    assert secret(file) == "plain"


def test_over_tls_only_a_trusted_certificate_will_do(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-keyout",
        str(key),
        "-out",
        str(cert),
        *subject,
    ]
    subprocess.run(made, check=True, capture_output=True)
    with coordinator(tmp_path, tls=server_context(cert, key)) as here:
        trusting = Caller(
            Address(url=here.url, token=TOKEN, ca_file=cert), role="worker", clock=ManualClock(), rng=np.random.default_rng(0)
        )
        assert RemoteLedger(seat(here.url, made=trusting), ManualClock()).wanted_version(0) == 0
        trusting.close()
        clock = ManualClock()
        with pytest.raises(RunFailed, match="certificate verify failed"):
            seat(here.url, made=caller(here.url, clock=clock, pause=clock.advance))
    with pytest.raises(UsageError, match="cannot be used"):
        server_context(key, cert)
    assert isinstance(server_context(cert, key), ssl.SSLContext)


def test_a_learners_call_goes_through_as_many_epochs_as_it_takes(tmp_path: Path) -> None:
    with coordinator(tmp_path) as here:
        trainer = remote(seat(here.url, "learner", "L"))
        trainer.begin(0)
        rejoin, epochs = trainer._seat.rejoin, []

        def ends_again(ended: int):
            joined = rejoin(ended)
            epochs.append(joined.epoch)
            if len(epochs) < 3:
                here.clock.advance(LEASE_S + 1)
                here.expire()
            return joined

        here.clock.advance(LEASE_S + 1)
        here.expire()
        trainer._seat.rejoin = ends_again  # type: ignore[method-assign]
        trainer.sync()
        assert epochs == [3, 4, 5]
