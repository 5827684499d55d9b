"""The coordinator's figures for Prometheus: which there are. Called by `coordinator.desk`."""

from functools import partial

from slipstream.ledger.ledger import Ledger
from slipstream.runtime.coordinator import figures
from slipstream.runtime.coordinator.samplers import Samplers


def families(ledger: Ledger, samplers: Samplers, newest: int, quarantined: int) -> list[list[str]]:
    """All families of /metrics but those of graders. `newest`: version that can be fetched; `quarantined`: samplers in this term."""
    counters, told = ledger.counters(), samplers.here()
    gauge, labelled = partial(figures.family, kind="gauge"), figures.labelled
    ratios = {name: one.ratio for name, one in told.items() if one.ratio is not None}
    return [
        gauge("term", told="Starts of the coordinator.", values={"": counters["term"]}),
        gauge("lineage", told="Restarts from an older checkpoint.", values={"": counters["lineage"]}),
        gauge("version", told="Trained steps.", values={"": counters["version"]}),
        gauge("batches", told="Batches fixed.", values={"": counters["batched"]}),
        gauge("newest_published_version", told="Newest version that can be fetched.", values={"": newest}),
        gauge("workers", told="Workers whose lease runs.", values=labelled("kind", counters["workers"])),
        gauge("tickets", told="Tickets by state.", values=labelled("state", counters["tickets"])),
        gauge("samples", told="Draws: issued = batched + live + dropped.", values=labelled("state", figures.flat(counters["samples"]))),
        gauge("submissions", told="Rollouts handed in, by what became of them.", values=labelled("receipt", counters["submissions"])),
        gauge("tickets_returned", told="Tickets that came back, by reason.", values=labelled("reason", counters["returned"])),
        gauge("sampler_tokens", told="Drawn since it joined.", values=labelled("worker", {name: one.tokens for name, one in told.items()})),
        gauge(
            "sampler_wait_seconds",
            told="Waited since it joined.",
            values=labelled("worker", {name: one.wait_s for name, one in told.items()}),
        ),
        gauge("sampler_ratio", told="Mean importance ratio at equal weights, last judged.", values=labelled("worker", ratios)),
        gauge("samplers_quarantined", told="Put in quarantine since the coordinator's start.", values={"": quarantined}),
    ]
