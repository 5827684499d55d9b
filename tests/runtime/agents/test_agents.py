"""Agents that ask the run's endpoint with OpenAI's client: what is recorded, what is refused, and how their episodes end."""

import asyncio
import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from slipstream.config.load import load_config
from slipstream.core.clock import SystemClock
from slipstream.core.errors import ConfigError, RunFailed, UsageError
from slipstream.core.records import FinishReason, OutcomeKind, Prompt
from slipstream.core.rng import generator
from slipstream.envs.agent import AgentLimits, verdict
from slipstream.envs.user_agent import find_agent
from slipstream.loop.agent_episodes import AgentEpisodes
from slipstream.loop.episodes import turn_seed
from slipstream.runtime.agents.host import AgentHost
from slipstream.runtime.coordinator.checks import Bounds, check_rollout
from slipstream.runtime.coordinator.messages import MessageError
from tests.ledger.rollouts import NumberedPrompts, make_rollout
from tests.loop.tickets import ticket
from tests.runtime.agents.led import BROKEN, STOP, TOKENIZER, LedTask, Listening, client, numbered, plain_client, play, request, shown, user


async def three_turns(base_url: str, api_key: str, prompt: Prompt) -> float:
    """Asks three times in one conversation, with pauses, streamed or not; odd ones in a thread."""
    messages: list[Any] = [user(f"Q{prompt.answer}")]
    draw = generator(0, "latency", prompt.id)
    async with client(base_url, api_key) as asked:
        for turn in range(3):
            await asyncio.sleep(float(draw.uniform(0, 0.02)))
            if int(prompt.answer) % 3:
                message = (await asked.chat.completions.create(model="any", messages=messages)).choices[0].message
                messages += [message, user(f"more {turn}")]
            else:
                text = ""
                async for chunk in await asked.chat.completions.create(model="any", messages=messages, stream=True):
                    text += chunk.choices[0].delta.content or ""
                messages += [{"role": "assistant", "content": text}, user(f"more {turn}")]
    return 1.0


def either(base_url: str, api_key: str, prompt: Prompt) -> Any:
    """A coroutine for even ones, a blocking call for odd ones."""
    made = three_turns(base_url, api_key, prompt)
    return asyncio.run(made) if int(prompt.answer) % 2 else made


def test_64_agents_at_once_are_recorded_id_by_id() -> None:
    played = play(LedTask(lead=either), 64, Listening(numbered))
    assert len(played.ended) == 64
    assert (played.episodes.turns, len(played.requests)) == (192, 192)
    for name, episode in played.ended.items():
        assert (episode.outcome.kind, episode.outcome.reward, episode.outcome.side_turns) == (OutcomeKind.VALUE, 1.0, 0)
        assert shown(episode.prompt.token_ids) == f"<|im_start|>user\nQ{name[1:]}<|im_end|>\n<|im_start|>assistant\n" == episode.prompt.text
        mask, ids = episode.loss_mask, episode.sample.completion_ids
        chosen = [token for turn in (1, 2, 3) for token in [*TOKENIZER.encode(f"ok{turn}").tolist(), BROKEN, STOP]]
        assert ids[mask].tolist() == chosen  # also the byte that is no text, as which its text never comes back
        between = [f"\n<|im_start|>user\nmore {turn}<|im_end|>\n<|im_start|>assistant\n" for turn in (0, 1)]
        assert shown(ids[~mask]) == "".join(between)
        assert episode.sample.logprobs.tolist() == np.where(mask, -0.5, 0).tolist()
        assert (episode.sample.versions == 0).all()
        assert episode.sample.key == (name, 0)
    assert {request.seed for request in played.requests} == {turn_seed(7, turn) for turn in range(3)}
    assert not played.events
    assert played.episodes.overlapped


async def wander(base_url: str, api_key: str, prompt: Prompt) -> dict[str, Any]:
    """Two turns; a history without the first; a second conversation; the same question again; back to the first."""
    async with client(base_url, api_key) as asked:

        async def ask(*messages: Any) -> Any:
            return (await asked.chat.completions.create(model="any", messages=list(messages), logprobs=True)).choices[0].message

        first = await ask(user("A"))
        second = await ask(user("A"), first, user("B"))
        await ask(user("A"), {"role": "assistant", "content": "rewritten"}, user("B"))
        await ask(user("other"))
        await ask(user("A"))
        parts = [{"type": "text", "text": "B"}]
        await ask(user("A"), first.model_dump(), {"role": "user", "content": parts}, second, user("C"))
    return {"reward": 0.25, "format_ok": True, "detail": "seen"}


def test_the_longest_conversation_is_the_rollout_and_the_others_are_counted() -> None:
    played = play(LedTask(lead=wander), 1, Listening(numbered))
    episode = played.ended["n0"]
    assert (episode.outcome.reward, episode.outcome.format_ok, episode.outcome.detail) == (0.25, True, "seen")
    assert (played.episodes.turns, episode.outcome.side_turns) == (6, 3)
    assert played.events == [{"role": "agents", "kind": "agent_side_chains", "ticket": "n0", "sample": 0, "conversations": 3, "turns": 3}]
    assert shown(episode.sample.completion_ids[~episode.loss_mask]).count("<|im_start|>user") == 2
    assert np.count_nonzero(np.diff(episode.loss_mask, prepend=False) & episode.loss_mask) == 3
    asked = {request.key: shown(request.prompt_ids) for request in played.requests}
    same = [request.seed for request in played.requests if asked[request.key] == asked["n0#0", 0]]
    assert len(set(same)) == len(same) == 2  # asked twice, drawn twice


def complete_text(base_url: str, api_key: str, prompt: Prompt) -> float:
    """Text with a stop string, the way of agents that act by text; then ids."""
    with plain_client(base_url, api_key) as asked:
        first = asked.completions.create(model="any", prompt="Do:", max_tokens=50, stop=["END"], extra_body={"return_token_ids": True})
        assert first.choices[0].text == "act "
        second = asked.completions.create(model="any", prompt="Do:act END seen", max_tokens=4, extra_body={"return_token_ids": True})
        choice: Any = second.choices[0]
        ids = [*choice.prompt_token_ids, *choice.token_ids, 5, 6]
        asked.completions.create(model="any", prompt=ids, max_tokens=3)
    return 1.0


def test_completions_go_on_from_text_and_from_ids() -> None:
    words = TOKENIZER.encode("act END of it").tolist()
    played = play(LedTask(lead=complete_text), 1, Listening(lambda request: [*words, STOP]))
    episode = played.ended["n0"]
    assert shown(episode.prompt.token_ids) == "Do:"
    mask, ids = episode.loss_mask, episode.sample.completion_ids
    assert ids.tolist() == [*TOKENIZER.encode("act END seen").tolist(), *words[:4], 5, 6, *words[:3]]
    assert mask.tolist() == [True] * 7 + [False] * 5 + [True] * 4 + [False] * 2 + [True] * 3
    assert (episode.outcome.reward, episode.outcome.side_turns, episode.sample.finish_reason) == (1.0, 0, FinishReason.ENVIRONMENT)


FATES: dict[str, tuple[OutcomeKind, str]] = {
    "good": (OutcomeKind.VALUE, "reward 1"),
    "hangs": (OutcomeKind.TIMEOUT, "the agent did not return in 4 s"),
    "blocks": (OutcomeKind.TIMEOUT, "the agent did not return in 4 s"),
    "raises": (OutcomeKind.INFRASTRUCTURE, "the agent raised KeyError: 'no such thing'"),
    "exits": (OutcomeKind.INFRASTRUCTURE, "the agent raised AgentExit: SystemExit(3)"),
    "leaves": (OutcomeKind.INFRASTRUCTURE, "the agent raised AgentExit: SystemExit(4)"),
    "cancels": (OutcomeKind.INFRASTRUCTURE, "the agent was cancelled by itself"),
    "nan": (OutcomeKind.INFRASTRUCTURE, "the agent returned nan"),
    "nothing": (OutcomeKind.INFRASTRUCTURE, "the agent returned NoneType 'None', not a number"),
    "silent": (OutcomeKind.INFRASTRUCTURE, "the agent asked for no turn of the model, so that there is nothing to train on"),
    "long": (OutcomeKind.UNPARSEABLE, "no answer: the conversation exceeds the model's context length here"),
    "many": (OutcomeKind.UNPARSEABLE, "no answer: the episode has made 3 requests, as many as it may (task.max_turns)"),
}


def test_agents_that_fail_are_told_apart_and_harm_nobody() -> None:
    released = threading.Event()

    async def fail(base_url: str, api_key: str, fate: str) -> Any:
        async with client(base_url, api_key) as asked:
            messages: list[Any] = [user("A")]

            async def ask(**fields: Any) -> None:
                message = (await asked.chat.completions.create(model="any", messages=messages, **fields)).choices[0].message
                messages.extend([message, user("and " + "on " * (150 if fate == "long" else 1))])

            if fate == "silent":
                return 1.0
            await ask()
            match fate:
                case "hangs":
                    await asyncio.Event().wait()
                case "raises":
                    raise KeyError("no such thing")
                case "leaves":
                    raise SystemExit(4)
                case "cancels":
                    raise asyncio.CancelledError
                case "long" | "many":
                    for _ in range(8):
                        await ask()
            return {"nan": float("nan"), "nothing": None}.get(fate, 1.0)

    def lead(base_url: str, api_key: str, prompt: Prompt) -> Any:
        fate = [*FATES][int(prompt.answer) % len(FATES)]
        if fate in ("blocks", "exits"):
            with plain_client(base_url, api_key) as asked:
                asked.chat.completions.create(model="any", messages=[{"role": "user", "content": "A"}])
            if fate == "exits":
                raise SystemExit(3)
            return float(released.wait(60))
        return fail(base_url, api_key, fate)

    limits = AgentLimits(requests=3, episode_s=4.0, at_once=10)  # fewer than there are: those that block are left behind
    played = play(LedTask(lead=lead, agent_limits=limits), 2 * len(FATES), Listening(numbered))
    released.set()
    assert len(played.ended) == 2 * len(FATES)
    for name, episode in played.ended.items():
        kind, detail = FATES[[*FATES][int(name[1:]) % len(FATES)]]
        assert episode.outcome.kind is kind, (name, episode.outcome)
        assert episode.outcome.detail.startswith(detail)
        assert episode.outcome.reward == {OutcomeKind.VALUE: 1.0, OutcomeKind.UNPARSEABLE: 0.0}.get(kind)
        said_nothing = not episode.loss_mask.any()
        assert said_nothing == (detail == FATES["silent"][1])
        assert len(episode.sample.completion_ids) == len(episode.loss_mask) >= 1


def test_what_would_draw_otherwise_is_refused() -> None:
    found: dict[str, tuple[int, str]] = {}
    keys: list[str] = []

    def lead(base_url: str, api_key: str, prompt: Prompt) -> float:
        def refused(name: str, key: str = api_key, **fields: Any) -> None:
            given: Any = {"model": "any", "messages": [user("A")], **fields}
            with plain_client(base_url, key) as asked, pytest.raises(openai.APIStatusError) as caught:
                asked.chat.completions.create(**given)
            found[name] = caught.value.status_code, str(caught.value)

        refused("temperature", temperature=0.5)
        refused("n", n=2)
        refused("seed", seed=3)
        refused("top_p", top_p=0.9)
        refused("top_k", extra_body={"top_k": 5})
        refused("messages", messages=[])
        refused("key", key="none")
        if keys:
            refused("ended", key=keys[0])
        keys.append(api_key)
        refused("prompt", messages=[user("A" * 500)])
        with plain_client(base_url, api_key) as asked:
            assert [model.id for model in asked.models.list()] == ["policy"]
            fine: Any = {"temperature": 1, "n": 1, "top_p": 1, "max_tokens": 10_000}
            answer = asked.chat.completions.create(model="any", messages=[{"role": "user", "content": "A"}], **fine)
            assert answer.choices[0].finish_reason == "stop"
        return 0.0

    limits = AgentLimits(requests=8, episode_s=120.0, at_once=1)
    sampler = Listening(numbered)
    played = play(LedTask(lead=lead, agent_limits=limits), 2, sampler)
    assert [episode.outcome.kind for episode in played.ended.values()] == [OutcomeKind.WRONG, OutcomeKind.WRONG]
    assert [request.max_new_tokens for request in sampler.requests] == [400, 400]
    assert Counter(status for status, _ in found.values()) == {400: 7, 401: 2}
    assert "temperature = 0.5, but turns are drawn at 1, the run's own; leave it out" in found["temperature"][1]
    assert "that of no open episode" in found["key"][1]
    assert "that of no open episode" in found["ended"][1]
    assert "exceeds the model's context length here: a conversation's first prompt may have 400" in found["prompt"][1]


def test_a_client_that_leaves_frees_its_slot_and_leaves_no_turn() -> None:
    sampler = Listening(lambda request: range(2, 1 << 40) if "slow" in shown(request.prompt_ids) else numbered(request))

    async def lead(base_url: str, api_key: str, prompt: Prompt) -> float:
        async with client(base_url, api_key) as asked:
            slow: list[Any] = [user("slow")]
            asking = asyncio.create_task(asked.chat.completions.create(model="any", messages=slow))
            while not sampler.running():
                await asyncio.sleep(0.001)
            asking.cancel()
            while not sampler.aborted:
                await asyncio.sleep(0.001)
            await asked.chat.completions.create(model="any", messages=[{"role": "user", "content": "quick"}])
        return 1.0

    played = play(LedTask(lead=lead), 1, sampler, new=1 << 40)
    episode = played.ended["n0"]
    assert sampler.aborted == [("n0#0", 0)]
    assert "quick" in episode.prompt.text
    assert (episode.outcome.side_turns, [row["kind"] for row in played.events]) == (0, ["agent_request_withdrawn"])


def test_a_stop_hands_in_what_ends_and_drops_who_asks_for_more() -> None:
    told = threading.Barrier(3, timeout=60)

    def lead(base_url: str, api_key: str, prompt: Prompt) -> float:
        with plain_client(base_url, api_key) as asked:
            asked.chat.completions.create(model="any", messages=[{"role": "user", "content": "A"}])
            told.wait()
            if prompt.answer == "1":
                asked.chat.completions.create(model="any", messages=[{"role": "user", "content": "B"}])
        return 1.0

    task = LedTask(lead=lead, agent_limits=AgentLimits(requests=8, episode_s=120.0, at_once=2))
    with closing(AgentHost(task, clock=SystemClock())) as host:
        episodes = AgentEpisodes(Listening(numbered), host, TOKENIZER)
        for index in range(3):  # the third waits for a place
            episodes.begin(task.prompt(index), request(task.prompt(index)))
        assert episodes.places == -1
        while episodes.turns < 2:
            episodes.run()
        told.wait()
        ended = episodes.drain(1.0)
        assert [episode.prompt.id for episode in ended] == ["n0"]
        assert episodes.open == 0  # neither it nor the one that started in the first's place
    with pytest.raises(RunFailed, match="the host of agents is closed"):
        host.begin(task.prompt(0), request(task.prompt(0)))


def test_an_agent_that_never_works_ends_the_run() -> None:
    def lead(base_url: str, api_key: str, prompt: Prompt) -> float:
        raise OSError("no such service")

    with pytest.raises(RunFailed, match="the agent of led failed on each of its first 20 answers; the last: the agent raised OSError"):
        play(LedTask(lead=lead), 30, Listening(numbered))


def test_verdicts_of_what_agents_return() -> None:
    assert (verdict(0).kind, verdict(True).reward, verdict({"reward": "0.5"}).reward) == (OutcomeKind.WRONG, 1.0, 0.5)
    for wrong in ("yes", [1], {"score": 1}, float("inf"), {"reward": None}):
        assert verdict(wrong).kind is OutcomeKind.INFRASTRUCTURE


def test_settings_of_an_agent_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config("gsm8k", ["task.agent=a:b", "task.environment=a:B", 'task.tools=["python"]', "task.step_seconds=3"])
    assert [problem.field for problem in refused.value.problems] == ["task.tools", "task.environment", "task.step_seconds"]
    with pytest.raises(ConfigError, match=r"task\.agents_at_once = 3: has no effect: there is no task\.agent"):
        load_config("gsm8k", ["task.agents_at_once=3"])
    (tmp_path / "agent.py").write_text("def two(base_url, api_key): ...\n")
    with pytest.raises(UsageError, match=r"it is called as two\(base_url, api_key, prompt\), and too many positional arguments"):
        find_agent(f"{tmp_path / 'agent.py'}:two")


def test_a_coordinator_takes_the_prompts_of_agents_within_bounds() -> None:
    prompts = NumberedPrompts()
    told = make_rollout(ticket(0), 0, [1, 2])
    given = {"prompts": prompts, "max_new_tokens": 8, "tokens": 100}
    own = replace(told, prompt_ids=np.array([5, 6, 7], np.int32))
    with pytest.raises(MessageError, match="is not that of ticket 0"):
        check_rollout(own, Bounds(**given))
    check_rollout(own, Bounds(**given, agents_prompt_tokens=3))
    for wrong in ([5, 6, 7, 8], [], [100]):
        with pytest.raises(MessageError, match="is not that of ticket 0"):
            check_rollout(replace(own, prompt_ids=np.array(wrong, np.int32)), Bounds(**given, agents_prompt_tokens=3))
