"""transformers' `generate` on a workload: batches of `concurrency` samples in order, padded on the left. Prints one JSON object.

    python benchmarks/peers/hf_generate.py --model DIR --workload FILE.json --dtype bfloat16|float32

A batch runs until its longest sample is done; only the tokens that were asked for count. Needs torch and transformers, nothing
of ours.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig
from workload import Wanted, Workload, read_workload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(0)
    work = read_workload(asked.workload)
    model = AutoModelForCausalLM.from_pretrained(asked.model, dtype=getattr(torch, asked.dtype)).eval()
    _generate(model, work, [Wanted(prompt=work.samples[0].prompt, new_tokens=2)] * min(work.concurrency, len(work.samples)))  # warm-up
    start, cpu_start, tokens = time.monotonic(), time.process_time(), 0
    for first in range(0, len(work.samples), work.concurrency):
        tokens += _generate(model, work, work.samples[first : first + work.concurrency])
    wall_s = time.monotonic() - start
    found = {
        "peer": "transformers generate",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__},
        "dtype": asked.dtype,
        "threads": asked.threads,
        "samples": len(work.samples),
        "tokens": tokens,
        "wall_s": wall_s,
        "cpu_s": time.process_time() - cpu_start,
        "tokens_per_second": tokens / wall_s,
    }
    print(json.dumps(found))


@torch.inference_mode()
def _generate(model: torch.nn.Module, work: Workload, batch: list[Wanted]) -> int:
    """Tokens drawn that were asked for."""
    width, longest = max(len(sample.prompt) for sample in batch), max(sample.new_tokens for sample in batch)
    padding = [width - len(sample.prompt) for sample in batch]
    ids = torch.tensor([[0] * left + sample.prompt for left, sample in zip(padding, batch, strict=True)])
    mask = torch.tensor([[0] * left + [1] * (width - left) for left in padding])
    draws = {"do_sample": True, "temperature": work.temperature, "top_k": 0, "top_p": 1.0} if work.temperature else {"do_sample": False}
    stop = None if work.ignore_eos else model.generation_config.eos_token_id
    settings = GenerationConfig(max_new_tokens=longest, eos_token_id=stop, pad_token_id=0, **draws)
    drawn = model.generate(ids, attention_mask=mask, generation_config=settings)[:, width:]
    return sum(_length(row[: sample.new_tokens].tolist(), stop) for row, sample in zip(drawn, batch, strict=True))


def _length(ids: list[int], stop: int | list[int] | None) -> int:
    """Tokens of a completion, its stop token included."""
    stops = [] if stop is None else stop if isinstance(stop, list) else [stop]
    return min((ids.index(token) + 1 for token in stops if token in ids), default=len(ids))


if __name__ == "__main__":
    main()
