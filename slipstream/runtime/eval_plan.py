"""What a run's evaluations ask, from its configuration; and the text of a chat template as it goes into an evaluation's format."""

from slipstream.config.schema import PretrainedModel, RunConfig
from slipstream.envs.task import Task
from slipstream.loop.eval_format import evaluation_format, format_hash
from slipstream.loop.evaluate import Draw, Plan
from slipstream.runtime.pretrained import model_directory
from slipstream.text.chat import ChatTemplate, read_chat_template


def evaluation_plan(config: RunConfig, task: Task) -> Plan:
    """Draws have the seed 0, whatever the run's: all runs' evaluations ask the same."""
    chosen, max_new_tokens = config.evaluation, config.sampling.max_new_tokens
    greedy = Draw(max_new_tokens=max_new_tokens)
    sampled = Draw(samples=chosen.samples, temperature=chosen.temperature, max_new_tokens=max_new_tokens) if chosen.samples else None
    source = config.model.source
    template = read_chat_template(model_directory(source)) if isinstance(source, PretrainedModel) else None
    format = evaluation_format(config.task, task.format_hash, template_text(template), [greedy, *([sampled] if sampled else [])])
    return Plan(
        task=task.name, greedy=greedy, sampled=sampled, k=chosen.k, format_hash=format_hash(format), samples_kept=chosen.samples_kept
    )


def template_text(template: ChatTemplate | None) -> str:
    """The text of a chat template with its special tokens; "" where there is none."""
    return "\n".join([template.source, *(f"{name}={token}" for name, token in sorted(template.tokens.items()))]) if template else ""
