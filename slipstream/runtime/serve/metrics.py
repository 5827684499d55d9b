"""Figures of a server in Prometheus' text format. Called by `serve.app` and `serve.service`, on the event loop's thread only."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_BETWEEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Histogram:
    """Counts of values up to each bound, their number and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def lines(self, name: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum!r}"
        yield f"{name}_count {total}"


class Metrics:
    """What a server has done since it started."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()  # by endpoint and outcome
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.first_token_s = Histogram(_FIRST_TOKEN_S)  # from the request's arrival, its wait for a slot included
        self.between_tokens_s = Histogram(_BETWEEN_S)  # time between deliveries over the tokens delivered

    def text(self, gauges: Mapping[str, tuple[str, float]], counters: Mapping[str, tuple[str, int]]) -> str:
        """Everything, with `gauges` and the engine's `counters` (help and value by name) as they are now."""
        lines: list[str] = []
        for name, (told, value) in gauges.items():
            lines += _family(name, "gauge", told, [f"slipstream_{name} {value:g}"])
        requests = [
            f'slipstream_requests_total{{endpoint="{endpoint}",outcome="{outcome}"}} {count}'
            for (endpoint, outcome), count in sorted(self.requests.items())
        ]
        lines += _family("requests_total", "counter", "Requests that have ended, by outcome.", requests)
        own = {
            "prompt_tokens_total": ("Prompt tokens of the samples taken.", self.prompt_tokens),
            "completion_tokens_total": ("Tokens drawn and delivered.", self.completion_tokens),
        }
        for name, (told, value) in (own | dict(counters)).items():
            lines += _family(name, "counter", told, [f"slipstream_{name} {value}"])
        for name, told, histogram in (
            ("time_to_first_token_seconds", "From a request's arrival to its sample's first token.", self.first_token_s),
            ("inter_token_seconds", "Between two tokens of a sample.", self.between_tokens_s),
        ):
            lines += _family(name, "histogram", told, histogram.lines(f"slipstream_{name}"))
        return "\n".join(lines) + "\n"


def _family(name: str, kind: str, told: str, samples: Iterable[str]) -> list[str]:
    return [f"# HELP slipstream_{name} {told}", f"# TYPE slipstream_{name} {kind}", *samples]
