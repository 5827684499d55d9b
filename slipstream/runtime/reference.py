"""The reference policy of objective.reference_path: a model directory whose vocabulary is the policy's. Called when a run opens."""

from pathlib import Path

from slipstream.config.schema import ObjectiveSection
from slipstream.core.errors import UsageError
from slipstream.models.spec import ModelSpec
from slipstream.runtime.pretrained import read_pretrained
from slipstream.text.tokenizer import Tokenizer
from slipstream.train.learner import Reference
from slipstream.weights.files import read_params


def open_reference(objective: ObjectiveSection, spec: ModelSpec, tokenizer: Tokenizer) -> Reference | None:
    """None where no path is given. Raises UsageError when the directory cannot be used or its tokens are not the policy's."""
    if not objective.reference_path:
        return None
    directory = Path(objective.reference_path)
    if not (directory / "config.json").is_file():
        raise UsageError(f"objective.reference_path = {objective.reference_path!r} is no model directory (no config.json in it)")
    found, its = read_pretrained(directory)
    vocabularies = [one.backend.get_vocab(with_added_tokens=True) for one in (its, tokenizer)]
    if vocabularies[0] != vocabularies[1]:
        raise UsageError(
            f"objective.reference_path = {objective.reference_path!r}: its vocabulary ({len(vocabularies[0])} tokens) is not the policy's "
            f"({len(vocabularies[1])}), so its log-probs are of other tokens; give a model with the same tokenizer"
        )
    return Reference(spec=found, params=read_params(directory, found))
