"""Manifests of weights inside messages: as JSON objects there, checked when they come out. Pure."""

import json
from typing import Any

from slipstream.weights.manifest import Manifest, decode_manifest, encode_manifest


def manifest_to_json(manifest: Manifest) -> dict[str, Any]:
    return json.loads(encode_manifest(manifest))


def manifest_from_json(row: dict[str, Any]) -> Manifest:
    """Raises ManifestError where it is none."""
    return decode_manifest(json.dumps(row).encode())
