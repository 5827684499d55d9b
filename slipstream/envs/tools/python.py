"""A Python tool: the program runs in a cell of the sandbox (`envs.sandbox`), fresh each time; what it prints is the answer."""

import os
from collections.abc import Mapping

from slipstream.core.errors import RunFailed
from slipstream.envs.sandbox.records import Ended, Job, Limits, Stopped
from slipstream.envs.sandbox.sandbox import Sandbox
from slipstream.envs.tools.tool import ToolError, ToolFailed, function_schema, text_argument
from slipstream.envs.verifiers.code_verifier import UNSAFE
from slipstream.text.call_json import Json

BODY = "slipstream.envs.verifiers.code_program:main"
MOST_SHOWN = 2000  # characters of output that the model gets to read
_STOPPED = {
    Stopped.DEADLINE: "the program did not end in time",
    Stopped.MEMORY: "the program used too much memory",
    Stopped.PROCESSES: "the program started too many processes",
    Stopped.FLOOD: "the program printed too much",
}


class PythonTool:
    """The tool `python`: {"code": "print(2**10)"} -> "1024". Raises RunFailed where this machine isolates no programs."""

    name = "python"
    schema = function_schema("python", "Runs a Python program and gives what it prints.", code="the program, e.g. print(2**10)")

    def __init__(self, *, at_once: int = 2, seconds: float = 5.0) -> None:
        self._limits = Limits(seconds=seconds)
        self._box = Sandbox(bodies=(BODY,), at_once=at_once, weak=os.environ.get(UNSAFE) == "1")

    def call(self, arguments: Mapping[str, Json]) -> str:
        job = Job(program=BODY, program_text=text_argument(arguments, "code").encode(errors="replace"), limits=self._limits)
        try:
            ended = self._box.submit(job).result()
        except RunFailed as error:
            raise ToolFailed(str(error)) from error
        return printed(ended)

    def close(self) -> None:
        self._box.close()


def printed(ended: Ended) -> str:
    """What the program printed, cut in its middle where it is long. Raises ToolError where it failed, with that and the reason."""
    output = _short(ended.stdout.decode(errors="replace").rstrip())
    if ended.stopped in _STOPPED:
        raise ToolError(_after(output, _STOPPED[ended.stopped]))
    if ended.exit_status:
        said = ended.note.decode(errors="replace").partition(" ")[2]  # "reason Class: message"
        raise ToolError(_after(output, said or f"the program ended with status {ended.exit_status}"))
    return output or "(the program printed nothing)"


def _after(output: str, words: str) -> str:
    return f"{output}\n{words}" if output else words


def _short(text: str) -> str:
    if len(text) <= MOST_SHOWN:
        return text
    half = MOST_SHOWN // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
