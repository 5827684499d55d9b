"""The command line as a person meets it: wrong calls. Exit code 2, one clear message on standard error, no traceback."""

import io
import os
import subprocess
import sys
from contextlib import chdir, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from slipstream import __version__
from slipstream.cli.main import main
from slipstream.config.load import dump_config, load_config
from slipstream.telemetry.run_directory import RunDirectory

HOLDER = """
import sys
from pathlib import Path
from slipstream.telemetry.run_directory import RunDirectory
RunDirectory.open(Path(sys.argv[1])).lock()
print("locked", flush=True)
sys.stdin.read()
"""


def slipstream(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`slipstream ARGUMENTS` in a process of its own, with narrow, plain output."""
    environment = os.environ | {"TERM": "dumb", "COLUMNS": "200", "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-m", "slipstream.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=120, check=False)


def refused(*arguments: str, cwd: Path | None = None) -> str:
    """The message of a call that must be refused as wrong usage. In this process: nothing has begun when a call is refused."""
    out, told = io.StringIO(), io.StringIO()
    where = chdir(cwd) if cwd else nullcontext()
    plain = patch.dict(os.environ, {"TERM": "dumb", "COLUMNS": "200"})
    called = patch.object(sys, "argv", ["slipstream", *arguments])
    with called, plain, where, redirect_stdout(out), redirect_stderr(told), pytest.raises(SystemExit) as ended:
        main()
    message = told.getvalue()
    assert (ended.value.code, out.getvalue()) == (2, ""), message
    assert "Traceback" not in message
    assert message.count("slipstream: ") == 1, message
    return message


def make_run(path: Path) -> None:
    """A directory with a run in it that has not got anywhere."""
    RunDirectory.create(path, dump_config(load_config("quickstart")))


def test_an_unknown_recipe_is_told_with_the_near_one(tmp_path: Path) -> None:
    message = refused("train", "quikstart", cwd=tmp_path)
    assert message == "slipstream: unknown recipe 'quikstart' (did you mean quickstart?); a path to a TOML file works too\n"
    assert list(tmp_path.iterdir()) == []  # nothing was made


def test_all_problems_of_a_call_are_told_in_one_message(tmp_path: Path) -> None:
    message = refused("train", "quickstart", "--set", "run.stepz=3", "--set", "task.digitz=3", "--set", "mode.kind=fast", cwd=tmp_path)
    assert message.splitlines() == [
        "slipstream: 3 configuration problems:",
        "  run.stepz = 3: no such field; did you mean steps?",
        "  mode.kind = 'fast': Input should be 'sync', 'lagged' or 'inflight'",
        "  task.digitz = 3: no such field; did you mean digits?",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "no recipe given; try: slipstream train quickstart"),
        (["train", "--resume"], "--resume needs --run-dir"),
        (["train", "quickstart", "--on", "ray"], "--on ray is not available; this version runs --on embedded"),
        (["train", "--resume", "--run-dir", "d", "--set", "run.steps=3"], "needs the recipe too"),
        (["train", "absent.toml"], "recipe file 'absent.toml' cannot be read"),
        (["train", "not.toml"], "recipe 'not.toml' is not valid TOML"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_a_wrong_call_is_told(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "not.toml").write_text("[run\n")
    assert words in refused(*arguments, cwd=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "quickstart", "--nonsense"], "No such option"),
        (["train", "quickstart", "another"], "unexpected extra argument"),
        (["trian"], "No such command"),
        (["report"], "Missing argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_the_parser_refuses_has_the_same_exit_code(arguments: list[str], words: str) -> None:
    done = slipstream(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_directory_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    before = (tmp_path / "run" / "run.toml").read_bytes()
    message = refused("train", "quickstart", "--run-dir", str(tmp_path / "run"))
    assert "already holds a run; go on with it by --resume or choose another --run-dir" in message
    assert (tmp_path / "run" / "run.toml").read_bytes() == before


def test_a_directory_in_use_names_the_process_that_has_it(tmp_path: Path) -> None:
    make_run(tmp_path)
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        message = refused("train", "--resume", "--run-dir", str(tmp_path))
        holder.communicate()  # closes its input: it ends
    assert f"{tmp_path} is in use by process {holder.pid}" in message


def test_there_must_be_a_run_to_go_on_with(tmp_path: Path) -> None:
    assert "holds no run" in refused("train", "--resume", "--run-dir", str(tmp_path))
    assert "is not a directory" in refused("train", "--resume", "--run-dir", str(tmp_path / "absent"))


@pytest.mark.parametrize("content", [b"[run\n", b"\xff\xfe", b"[run]\nstepz = 3\n"], ids=["no TOML", "no text", "unknown field"])
def test_a_run_whose_configuration_was_damaged_is_told(tmp_path: Path, content: bytes) -> None:
    make_run(tmp_path)
    (tmp_path / "run.toml").write_bytes(content)
    refused("train", "--resume", "--run-dir", str(tmp_path))


def test_a_place_where_no_directory_can_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file; choose another --run-dir" in refused("train", "quickstart", "--run-dir", str(tmp_path / "file"))
    assert "cannot be used" in refused("train", "quickstart", "--run-dir", str(tmp_path / "file" / "run"))


def test_a_run_refused_before_it_began_leaves_its_place_free(tmp_path: Path) -> None:
    """What only the model shows to be wrong is found after the directory was taken; the corrected call must find it free again."""
    call = ("train", "sums", "--set", "model.source.path=absent", "--run-dir", str(tmp_path / "run"), "--quiet")
    assert "absent" in refused(*call)
    assert list(tmp_path.iterdir()) == []


def test_the_report_of_nothing_is_told(tmp_path: Path) -> None:
    assert str(tmp_path) in refused("report", str(tmp_path))
    assert "absent" in refused("report", str(tmp_path / "absent"))


def test_the_version_is_printed() -> None:
    done = slipstream("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("command", ["train", "generate", "score", "eval", "serve", "report", "export", "import-gguf"])
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    done = slipstream(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Example:" in done.stdout


def test_help_is_fast_because_it_loads_no_numeric_library() -> None:
    names = ("jax", "pyarrow", "tokenizers", "optax", "aiohttp")
    script = f"import sys, slipstream.cli.main; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_resume_takes_the_same_command_and_refuses_a_changed_one(tmp_path: Path) -> None:
    """All changes at once, each with what the run began with; the run's own configuration is untouched."""
    config = load_config("quickstart")
    (tmp_path / "run.toml").write_text(dump_config(config))
    message = refused("train", "quickstart", "--resume", "--run-dir", str(tmp_path), "--set", "run.seed=5", "--set", "mode.eta=3")
    assert "run.seed = 5: the run began with 0 and keeps it" in message
    assert "mode.eta = 3: the run began with 2" in message
    assert (tmp_path / "run.toml").read_text() == dump_config(config)
