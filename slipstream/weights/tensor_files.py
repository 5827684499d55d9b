"""The tensors of a model directory by name, whichever of its safetensors files holds them. Reads one tensor, or a part, at a time."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from slipstream.core.errors import UsageError
from slipstream.weights.json_object import read_json

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Tensors:
    """Names, shapes, types and values; open as long as the `with` block of `open_tensors`."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self._files = files  # tensor name -> open safetensors file

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[name].get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """The type's name in safetensors, e.g. BF16."""
        return self._files[name].get_slice(name).get_dtype()

    def read(self, name: str) -> np.ndarray:
        return self._files[name].get_tensor(name)

    def read_part(self, name: str, part: tuple[slice, ...]) -> np.ndarray:
        """A rectangle of a tensor; the rest is not copied from the disk."""
        return self._files[name].get_slice(name)[part]


@contextmanager
def open_tensors(directory: Path) -> Iterator[Tensors]:
    """All tensors of a directory: one file, or those that the index names, or every *.safetensors where there is no index.

    Raises UsageError when the directory or a file is absent, a file is damaged, two files hold one name, or the index says of a
    file what is not so.
    """
    index = _index(directory)
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        places: dict[str, str] = {}
        for path in _paths(directory, index):
            file = stack.enter_context(_open(path))
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if name in files:
                    raise UsageError(f"{path}: tensor {name} is also in {places[name]} of {directory}; remove one of the files")
                files[name], places[name] = file, path.name
        _check_index(directory / INDEX, index or {}, places)
        yield Tensors(files)


def _index(directory: Path) -> dict[str, str] | None:
    """Tensor name to file name; None where the directory has no index or one file holds everything."""
    path = directory / INDEX
    if (directory / SINGLE).exists() or not path.exists():
        return None
    table = read_json(path).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise UsageError(f'{path} has no "weight_map" of tensor names to file names')
    outside = sorted({name for name in table.values() if Path(name).name != name})
    if outside:
        raise UsageError(f"{path} names files outside its directory: {', '.join(outside)}")
    return table


def _check_index(path: Path, index: Mapping[str, str], places: Mapping[str, str]) -> None:
    wrong = [f"{name} in {file}" for name, file in index.items() if places.get(name) != file]
    if wrong:
        raise UsageError(f"{path} names {len(wrong)} tensors that are not in their files; fetch it again:\n  " + "\n  ".join(wrong))


def _paths(directory: Path, index: Mapping[str, str] | None) -> list[Path]:
    if not directory.is_dir():
        raise UsageError(f"model directory {directory} does not exist")
    if index is not None:
        paths = [directory / name for name in sorted(set(index.values()))]
    elif (directory / SINGLE).exists():
        paths = [directory / SINGLE]
    else:
        paths = sorted(directory.glob("*.safetensors"))
    missing = [path.name for path in paths if not path.is_file()]
    if missing or not paths:
        other = "; *.bin files are not read" if list(directory.glob("*.bin")) else ""
        raise UsageError(f"model directory {directory} has no {', '.join(missing) or '*.safetensors file'}{other}")
    return paths


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="numpy")
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is not a whole safetensors file ({error}); fetch or write it again") from error
