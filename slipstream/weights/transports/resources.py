"""What can be asked of a store of chunks, by path: the same over every transport. Pure.

`manifests/LINEAGE/VERSION`, `chunks/HASH`, `patches/HASH/BASE`. There is no path for "the newest": who wants a version says which.
"""

from slipstream.weights.chunks import ChunkStore, PatchKey
from slipstream.weights.manifest import encode_manifest


def manifest_path(lineage: int, version: int) -> str:
    return f"manifests/{lineage}/{version}"


def chunk_path(hashed: str) -> str:
    return f"chunks/{hashed}"


def patch_path(key: PatchKey) -> str:
    return f"patches/{key[0]}/{key[1]}"


def find(store: ChunkStore, path: str) -> bytes | memoryview | None:
    """The bytes under a path; None where there is nothing, or nothing any more."""
    match path.split("/"):
        case ["manifests", lineage, version] if _whole(lineage) and _whole(version):
            held = store.version(int(lineage), int(version))
            return encode_manifest(held.manifest) if held else None
        case ["chunks", hashed]:
            return store.chunk(hashed)
        case ["patches", hashed, base]:
            return store.patch((hashed, base))
    return None


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 16
