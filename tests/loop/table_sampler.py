"""A sampler whose model is a table of logits, in plain Python; and one with each fault that a sampler can have.

The next token's logits depend on the last token and on the position. Every method below the port is one place to go wrong.
"""

from collections.abc import Sequence

import numpy as np

from slipstream.core.records import FinishReason, Sample, SampleRequest, TrainingSequence, WeightVersion

VOCABULARY, KNOWN, POSITIONS = 24, 20, 7
NEVER = -1e30


def table(seed: int, sharpness: float = 1.5) -> np.ndarray:
    """Logits float64 [positions, last token, next token]."""
    return np.random.default_rng(seed).normal(size=(POSITIONS, VOCABULARY, VOCABULARY)) * sharpness


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


class TableSampler:
    """Sound. Three samples a step, in the order of the requests."""

    id, sampler_class, version = "table", "pure/python", 0
    at_once = 3

    def __init__(self, logits: np.ndarray) -> None:
        self.table, self.queue, self.made = logits, list[SampleRequest](), 0

    def load(self, weights: WeightVersion) -> None:
        self.version = weights.version

    def waiting(self) -> int:
        return len(self.queue)

    def running(self) -> int:
        return 0

    def free_slots(self) -> int:
        return max(0, self.at_once - len(self.queue))

    def submit(self, request: SampleRequest) -> None:
        self.queue.append(request)

    def step(self) -> list[Sample]:
        now, self.queue = self.queue[: self.at_once], self.queue[self.at_once :]
        return [self.sample(request) for request in now]

    def sample(self, request: SampleRequest) -> Sample:
        self.made += 1
        ids, logprobs = request.prompt_ids.tolist(), []
        for position in range(len(ids), len(ids) + request.max_new_tokens):
            log_probs = self.distribution(self.logits(ids[-1], position), request.temperature)
            token = self.token(log_probs, request, position)
            logprobs.append(self.stored(log_probs, token, request))
            ids.append(token)
        return Sample(
            key=request.key,
            completion_ids=np.array(ids[len(request.prompt_ids) :], np.int32),
            logprobs=np.array(self.arranged(logprobs), np.float32),
            versions=np.full(request.max_new_tokens, self.version, np.int32),
            finish_reason=FinishReason.LENGTH,
            slot=0,
            started_s=0.0,
            finished_s=0.0,
        )

    # ---- what can be wrong

    def logits(self, last: int, position: int) -> np.ndarray:
        return np.where(np.arange(VOCABULARY) < KNOWN, self.table[position % POSITIONS, last], NEVER)

    def distribution(self, logits: np.ndarray, temperature: float) -> np.ndarray:
        return log_softmax(np.where(logits > NEVER, logits / (temperature or 1.0), NEVER))

    def token(self, log_probs: np.ndarray, request: SampleRequest, position: int) -> int:
        if request.temperature == 0:
            return int(log_probs.argmax())
        return self.by_chance(log_probs, self.noise(request, position))

    def by_chance(self, log_probs: np.ndarray, uniform: float) -> int:
        return int(min(np.searchsorted(np.cumsum(np.exp(log_probs)), uniform, side="right"), len(log_probs) - 1))

    def noise(self, request: SampleRequest, position: int) -> float:
        return self.uniform(request.seed, position)

    def uniform(self, *words: int) -> float:
        return float(np.random.default_rng([*words]).random())

    def stored(self, log_probs: np.ndarray, token: int, request: SampleRequest) -> float:
        return float(log_probs[token])

    def arranged(self, logprobs: list[float]) -> list[float]:
        return logprobs


def learner_of(logits: np.ndarray):
    """The score of a learner with the same table."""
    model = TableSampler(logits)

    def score(sequences: Sequence[TrainingSequence], temperature: float) -> list[np.ndarray]:
        return [scored(model, sequence.token_ids.tolist(), temperature) for sequence in sequences]

    return score


def scored(model: TableSampler, ids: list[int], temperature: float) -> np.ndarray:
    found = [model.distribution(model.logits(last, place), temperature)[ids[place]] for place, last in enumerate(ids[:-1], 1)]
    return np.array([0.0, *found], np.float32)


class GreedyInDisguise(TableSampler):
    def token(self, log_probs: np.ndarray, request: SampleRequest, position: int) -> int:
        return int(log_probs.argmax())


class TopKMinusOneIsOne(GreedyInDisguise):
    """Truncated to one token, so the stored log-prob is 0."""

    def stored(self, log_probs: np.ndarray, token: int, request: SampleRequest) -> float:
        return 0.0 if request.temperature else float(log_probs[token])


class TopFive(TableSampler):
    """A server's own default truncation, which nobody asked for."""

    def distribution(self, logits: np.ndarray, temperature: float) -> np.ndarray:
        found = super().distribution(logits, temperature)
        return log_softmax(np.where(found >= np.sort(found)[-5], found, NEVER))


class SeedIgnored(TableSampler):
    def noise(self, request: SampleRequest, position: int) -> float:
        return self.uniform(0, position)


class HighSeedIgnored(TableSampler):
    def noise(self, request: SampleRequest, position: int) -> float:
        return self.uniform(request.seed & 0xFFFFFFFF, position)


class LowSeedIgnored(TableSampler):
    def noise(self, request: SampleRequest, position: int) -> float:
        return self.uniform(request.seed >> 32, position)


class Unseeded(TableSampler):
    """Draws well, and differently each time."""

    def noise(self, request: SampleRequest, position: int) -> float:
        return self.uniform(self.made, position)


class PositionIgnoredByNoise(TableSampler):
    def noise(self, request: SampleRequest, position: int) -> float:
        return self.uniform(request.seed)


class TopLogprobStored(TableSampler):
    def stored(self, log_probs: np.ndarray, token: int, request: SampleRequest) -> float:
        return float(log_probs.max())


class TemperatureTwice(TableSampler):
    def distribution(self, logits: np.ndarray, temperature: float) -> np.ndarray:
        return super().distribution(logits, temperature**2)


class TemperatureTwiceInDraws(TableSampler):
    def by_chance(self, log_probs: np.ndarray, uniform: float) -> int:
        return super().by_chance(log_softmax(log_probs * self.factor), uniform)

    def token(self, log_probs: np.ndarray, request: SampleRequest, position: int) -> int:
        self.factor = 1 / (request.temperature or 1.0)
        return super().token(log_probs, request, position)


class TemperatureIgnored(TableSampler):
    def distribution(self, logits: np.ndarray, temperature: float) -> np.ndarray:
        return super().distribution(logits, 1.0)


class DividedAfterNormalising(TableSampler):
    def stored(self, log_probs: np.ndarray, token: int, request: SampleRequest) -> float:
        temperature = request.temperature or 1.0
        return float(log_softmax(log_probs * temperature)[token] / temperature)


class StoredAtTemperatureOne(TableSampler):
    def stored(self, log_probs: np.ndarray, token: int, request: SampleRequest) -> float:
        return float(log_softmax(log_probs * (request.temperature or 1.0))[token])


class PositionLate(TableSampler):
    def logits(self, last: int, position: int) -> np.ndarray:
        return super().logits(last, position + 1)


class LogprobOfTheTokenBefore(TableSampler):
    def arranged(self, logprobs: list[float]) -> list[float]:
        return [logprobs[0], *logprobs[:-1]]


class PaddingDrawn(TableSampler):
    def logits(self, last: int, position: int) -> np.ndarray:
        return self.table[position % POSITIONS, last]


class GreedyDraws(TableSampler):
    """Temperature 0 is taken for temperature 1."""

    def token(self, log_probs: np.ndarray, request: SampleRequest, position: int) -> int:
        return self.by_chance(log_probs, self.noise(request, position))


class SecondBest(TableSampler):
    """Greedy, but not quite."""

    def token(self, log_probs: np.ndarray, request: SampleRequest, position: int) -> int:
        return super().token(log_probs, request, position) if request.temperature else int(np.argsort(log_probs)[-2])


class NotANumber(TableSampler):
    def arranged(self, logprobs: list[float]) -> list[float]:
        return [*logprobs[:-1], float("nan")]


class OneTooFew(TableSampler):
    def arranged(self, logprobs: list[float]) -> list[float]:
        return logprobs[:-1]


FAULTS: dict[type[TableSampler], set[str]] = {
    GreedyInDisguise: {"first tokens"},
    TopKMinusOneIsOne: {"log-probs"},
    TopFive: {"log-probs"},
    SeedIgnored: {"first tokens", "seeds differ"},
    HighSeedIgnored: {"seeds differ"},
    LowSeedIgnored: {"seeds differ"},
    Unseeded: {"seeds repeat"},
    PositionIgnoredByNoise: {"second tokens"},
    TopLogprobStored: {"probabilities", "log-probs"},
    TemperatureTwice: {"log-probs"},
    TemperatureTwiceInDraws: {"first tokens"},
    TemperatureIgnored: {"log-probs"},
    DividedAfterNormalising: {"log-probs"},
    StoredAtTemperatureOne: {"first tokens", "log-probs"},
    PositionLate: {"log-probs"},
    LogprobOfTheTokenBefore: {"log-probs"},
    PaddingDrawn: {"padding rows"},
    GreedyDraws: {"greedy"},
    SecondBest: {"greedy"},
    NotANumber: {"records"},
    OneTooFew: {"records"},
}
"""What each fault must at least be found by; the temperature of a finding is left out."""
