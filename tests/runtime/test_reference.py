"""A reference policy from a directory: taken when its tokens are the policy's, refused when they are not."""

from pathlib import Path

import pytest

from slipstream.config.schema import ObjectiveSection
from slipstream.core.errors import UsageError
from slipstream.runtime import reference as module
from slipstream.runtime.reference import open_reference
from slipstream.text.tokenizer import character_tokenizer
from tests.train.small import SPEC, params


def test_a_reference_of_another_vocabulary_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of the same size, but with other tokens behind the ids."""
    policys, other = character_tokenizer("abc"), character_tokenizer("abd")
    (tmp_path / "config.json").write_text("{}")
    section = ObjectiveSection(kl_coefficient=0.1, reference_path=str(tmp_path))
    monkeypatch.setattr(module, "read_params", lambda directory, spec: params())
    monkeypatch.setattr(module, "read_pretrained", lambda directory: (SPEC, other))
    with pytest.raises(UsageError, match=r"reference_path.*vocabulary \(4 tokens\)"):
        open_reference(section, SPEC, policys)
    found = open_reference(section, SPEC, other)
    assert found is not None
    assert found.params is params()
    assert open_reference(ObjectiveSection(), SPEC, policys) is None
    with pytest.raises(UsageError, match=r"reference_path.*no model directory"):
        open_reference(ObjectiveSection(reference_path=str(tmp_path / "none")), SPEC, policys)
