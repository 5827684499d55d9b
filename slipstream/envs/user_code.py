"""Code of the user found by its address: a function or a class in a module or a file. One clear error where it cannot be had."""

import inspect
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from slipstream.core.errors import UsageError


def find_code(address: str, field: str, kind: str) -> Any:
    """What is callable at "package.module:NAME" or "path/to/file.py:NAME". `field` is the setting; `kind` "function" or "Class".

    Raises UsageError when there is no such module, file or name, and when it fails while it is loaded.
    """
    where, separator, name = address.rpartition(":")
    if not separator or not where or not name:
        raise problem(address, field, f"write it as module:{kind} or path/to/file.py:{kind}")
    module = _load(address, field, where, kind)
    found = getattr(module, name, None)
    if not callable(found):
        wanted = inspect.isfunction if kind == "function" else inspect.isclass
        there = sorted(key for key, value in vars(module).items() if wanted(value) and not key.startswith("_"))
        raise problem(address, field, f"{where} has no {kind.lower()} {name!r}; it has {', '.join(there) or 'none'}")
    return found


def problem(address: str, field: str, what: str) -> UsageError:
    """The error of a setting that names code."""
    return UsageError(f"{field} = {address!r}: {what}")


def _load(address: str, field: str, where: str, kind: str) -> Any:
    try:
        if not where.endswith(".py"):
            return import_module(where)
        path = Path(where).expanduser()
        if not path.is_file():
            raise problem(address, field, f"there is no file {path}")
        spec = spec_from_file_location(f"slipstream_user_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except ModuleNotFoundError as error:
        raise problem(address, field, f"{error}; a file is written as path/to/file.py:{kind}") from error
    except Exception as error:
        raise problem(address, field, f"{where} fails while it is loaded: {type(error).__name__}: {error}") from error
    return module
