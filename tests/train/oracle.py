"""Every objective, correction and reducer once more, in plain Python from the papers' formulas: loops over sequences, no arrays.

`step` gives the loss of an optimizer step and its slope in each token's current log-prob.
"""

import math
from dataclasses import dataclass, field

from slipstream.config.schema import CorrectionSection, ObjectiveSection


@dataclass(kw_only=True)
class Drawn:
    """One sequence's trained tokens."""

    current: list[float]
    proximal: list[float]
    behaviour: list[float]
    reference: list[float]
    advantages: list[float]
    corrected: bool = True
    kept: list[bool] = field(default_factory=list)  # by the mask over the whole batch; empty: all


@dataclass(kw_only=True)
class Term:
    """Of one token."""

    loss: float
    slope: float
    clipped: bool = False
    masked: bool = False


def step(drawn: list[Drawn], objective: ObjectiveSection, correction: CorrectionSection, sum_tokens: int) -> tuple[float, list[list[Term]]]:
    """The step's loss, and each token's term with its reducer's weight in it."""
    total, all_tokens, found = 0.0, sum(len(one.current) for one in drawn), []
    for one in drawn:
        weight = {
            "token": 1 / all_tokens,
            "sequence": 1 / (len(drawn) * len(one.current)),
            "constant": 1 / (len(drawn) * sum_tokens),
        }[objective.reducer]
        terms = [_with_kl(term, one, index, objective) for index, term in enumerate(_corrected(one, objective, correction))]
        total += sum(weight * term.loss for term in terms)
        found.append(
            [Term(loss=weight * t.loss, slope=weight * t.slope, clipped=t.clipped, masked=t.masked) for t in terms],
        )
    return total, found


def _with_kl(term: Term, one: Drawn, index: int, objective: ObjectiveSection) -> Term:
    if objective.kl_in != "loss" or objective.kl_coefficient == 0:
        return term
    gap = one.current[index] - one.reference[index]
    value, slope = {"k1": (gap, 1.0), "k2": (gap * gap / 2, gap), "k3": (math.exp(-gap) - 1 + gap, 1 - math.exp(-gap))}[
        objective.kl_estimator
    ]
    loss, slope = term.loss + objective.kl_coefficient * value, term.slope + objective.kl_coefficient * slope
    return Term(loss=loss, slope=slope, clipped=term.clipped, masked=term.masked)


def _corrected(one: Drawn, objective: ObjectiveSection, correction: CorrectionSection) -> list[Term]:
    tokens = range(len(one.current))
    if not one.corrected:
        return _terms(one, list(one.behaviour), objective)
    kept = list(one.kept) or [True] * len(one.current)
    weights = [1.0] * len(one.current)
    behaviour = list(one.behaviour)
    gap = sum(one.behaviour[i] - one.current[i] for i in tokens) / len(one.current)
    if correction.sequence_kl and sum(one.advantages) < 0 and gap > correction.sequence_kl:
        kept = [False] * len(one.current)
    if correction.importance != "none":
        ratios = [math.exp(one.proximal[i] - one.behaviour[i]) for i in tokens]
        if correction.level == "sequence":
            ratios = [math.prod(ratios)] * len(ratios)
        behaviour = list(one.proximal)
        for i in tokens:
            if correction.importance == "truncated":
                weights[i] = min(ratios[i], correction.weight_cap)
            else:
                weights[i] = ratios[i]
                kept[i] = kept[i] and correction.weight_low <= ratios[i] <= correction.weight_high
    terms = _terms(one, [behaviour[i] if kept[i] else one.current[i] for i in tokens], objective)
    return [
        Term(loss=weights[i] * terms[i].loss, slope=weights[i] * terms[i].slope, clipped=terms[i].clipped, masked=terms[i].masked)
        if kept[i]
        else Term(loss=0.0, slope=0.0, masked=True)
        for i in tokens
    ]


def _terms(one: Drawn, behaviour: list[float], objective: ObjectiveSection) -> list[Term]:
    mean = sum(one.current[i] - behaviour[i] for i in range(len(behaviour))) / len(behaviour)
    return [
        _term(objective, one.current[i], one.proximal[i], behaviour[i], one.reference[i], one.advantages[i], math.exp(mean))
        for i in range(len(behaviour))
    ]


def _term(
    of: ObjectiveSection, current: float, proximal: float, behaviour: float, reference: float, advantage: float, sequence: float
) -> Term:
    ratio = math.exp(current - behaviour)
    if of.name == "sft":
        return Term(loss=-current, slope=-1.0)
    if of.name == "reinforce":
        return Term(loss=-advantage * current, slope=-advantage)
    if of.name in ("reinforce_is", "cispo", "distill"):
        weight = min(ratio, of.weight_cap) * (reference - current if of.name == "distill" else advantage)
        return Term(loss=-weight * current, slope=-weight, clipped=ratio > of.weight_cap)
    if of.name in ("ppo", "dapo"):
        return _surrogate(of, ratio, advantage)
    if of.name == "gspo":
        return _surrogate(of, sequence, advantage)
    if of.name == "dppo":
        rise = math.exp(current) - math.exp(behaviour)
        outside = (advantage > 0 and rise > of.clip_high) or (advantage < 0 and rise < -of.clip_low)
        pull, slope = of.ratio_penalty * (current - behaviour) ** 2, 2 * of.ratio_penalty * (current - behaviour)
        return (
            Term(loss=pull, slope=slope, masked=True) if outside else Term(loss=pull - ratio * advantage, slope=slope - ratio * advantage)
        )
    weight = math.exp(proximal - behaviour)
    if weight > of.weight_cap:
        return Term(loss=0.0, slope=0.0, masked=True)
    inner = _surrogate(of, math.exp(current - proximal), advantage)
    return Term(loss=weight * inner.loss, slope=weight * inner.slope, clipped=inner.clipped)


def _surrogate(of: ObjectiveSection, ratio: float, advantage: float) -> Term:
    bounded = min(max(ratio, 1 - of.clip_low), 1 + of.clip_high)
    if bounded * advantage < ratio * advantage:
        return Term(loss=-bounded * advantage, slope=0.0, clipped=True)
    return Term(loss=-ratio * advantage, slope=-ratio * advantage)


def gae(reward: float, values: list[float], gamma: float, decay: float) -> list[float]:
    """Schulman et al. 2015, arXiv 1506.02438, eq. 16, term by term: A_t is the sum over l of (gamma lambda)^l (r + gamma V_next - V)."""
    steps = len(values)
    found = []
    for at in range(steps):
        total = 0.0
        for ahead in range(steps - at):
            now = at + ahead
            next_value = values[now + 1] if now + 1 < steps else 0.0
            error = (reward if now + 1 == steps else 0.0) + gamma * next_value - values[now]
            total += (gamma * decay) ** ahead * error
        found.append(total)
    return found


def value_term(value: float, target: float, before: float, clip: float) -> Term:
    """The loss of one value and its slope in it; `clip` 0: not held near `before`."""
    free = Term(loss=(value - target) ** 2 / 2, slope=value - target)
    held = min(max(value, before - clip), before + clip)
    if clip == 0 or (held - target) ** 2 / 2 <= free.loss:
        return free
    return Term(loss=(held - target) ** 2 / 2, slope=0.0, clipped=True)
