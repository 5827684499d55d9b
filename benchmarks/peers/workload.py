"""The file that says what every peer has to generate. Standard library only: used by scripts of several environments.

    {"prompts": [[1, 2, 3], ...], "max_new_tokens": [64, ...], "group": 8, "concurrency": 32, "temperature": 1.0, "ignore_eos": true}

Each prompt is sampled `group` times. `max_new_tokens` has an entry for each prompt, or one for each sample, those of a prompt
together. With `ignore_eos` every sample is exactly so long. `concurrency` is how many samples may run at a time.
"""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One sample."""

    prompt: list[int]
    new_tokens: int  # exactly, or at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a peer has to do."""

    samples: list[Wanted]  # in order, those of a prompt together
    concurrency: int
    temperature: float  # 0: greedy
    ignore_eos: bool

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and completion."""
        return max(len(sample.prompt) + sample.new_tokens for sample in self.samples)


def read_workload(path: Path) -> Workload:
    """Raises ValueError or KeyError for a file in another form."""
    tree = json.loads(path.read_text())
    prompts, group, limits = tree["prompts"], tree["group"], tree["max_new_tokens"]
    if len(limits) == len(prompts):
        limits = [limit for limit in limits for _ in range(group)]
    if len(limits) != len(prompts) * group:
        raise ValueError(f"{path}: {len(limits)} max_new_tokens; there are {len(prompts)} prompts and {len(prompts) * group} samples")
    asked = [prompt for prompt in prompts for _ in range(group)]
    return Workload(
        samples=[Wanted(prompt=prompt, new_tokens=limit) for prompt, limit in zip(asked, limits, strict=True)],
        concurrency=tree["concurrency"],
        temperature=tree["temperature"],
        ignore_eos=tree["ignore_eos"],
    )
