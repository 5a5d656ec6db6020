"""Messages of ours and a job's own logging."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mlflow_perf.core.safe_log import get_logger


def _refuse(*_: object, **__: object) -> None:
    raise RuntimeError("the job's own")


class _Raising(logging.Handler):
    emit = _refuse


class _Exiting(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise SystemExit(3)


class _Filter(logging.Filter):
    filter = _refuse  # type: ignore[assignment]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Return a logger that keeps nothing of the test."""
    found = logging.getLogger("mlflow_perf.test_safe_log")
    yield found
    found.handlers.clear()
    found.filters.clear()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found.addHandler(_Raising()),
        lambda found: found.addHandler(_Exiting()),
        lambda found: found.addFilter(_Filter()),
        lambda _: logging.setLogRecordFactory(_refuse),  # type: ignore[arg-type]
    ],
    ids=["handler", "handler that exits", "filter", "record factory"],
)
def test_a_message_never_raises(
    logger: logging.Logger, spoil: Callable[[logging.Logger], None]
) -> None:
    """Whatever of the job's logging does."""
    factory = logging.getLogRecordFactory()
    try:
        spoil(logger)
        get_logger(logger.name).warning("%s is away", "it", exc_info=True)
    finally:
        logging.setLogRecordFactory(factory)


def test_an_error_of_a_signal_handler_passes_through(logger: logging.Logger) -> None:
    """A time limit of the job that ends during our message is not lost."""

    class Signalling(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            signal.raise_signal(signal.SIGUSR1)

    def end(number: int, frame: object) -> None:
        raise TimeoutError("the job's limit")

    logger.addHandler(Signalling())
    before = signal.signal(signal.SIGUSR1, end)
    try:
        with pytest.raises(TimeoutError, match="the job's limit"):
            get_logger(logger.name).warning("slow")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_message_is_a_usual_one(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    """The name is the module's, the place the caller's, and the level counts."""
    log = get_logger(logger.name)
    with caplog.at_level(logging.INFO, logger=logger.name):
        log.debug("unseen")
        log.warning("%s is away", "it")
    (record,) = caplog.records
    assert (record.name, record.getMessage()) == (logger.name, "it is away")
    if sys.version_info >= (3, 11):
        assert record.funcName == "test_a_message_is_a_usual_one"


def test_what_a_server_said_does_not_act_on_a_terminal(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    """Its text is on one line, with its control characters spelled out."""
    log, error = get_logger(logger.name), ConnectionError("\x1b[31mno\x1b]0;x\x07\nmore")
    log.warning("%r, %s, %s: %d", "a\x1b", Path("b\n"), error, 3)
    assert caplog.messages == ["'a\\\\x1b', b\\x0a, \\x1b[31mno\\x1b]0;x\\x07\\x0amore: 3"]


def test_a_job_that_debugs_itself_gets_no_debugging_of_ours(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    """The root's level is for the job's own lines; ours need a level on a logger of ours."""
    child = get_logger(f"{logger.name}.part")
    with caplog.at_level(logging.DEBUG):
        child.debug("unseen")
        child.warning("of ours")
        with caplog.at_level(logging.DEBUG, logger=logger.name):
            child.debug("asked for")
    assert caplog.messages == ["of ours", "asked for"]


def test_a_job_without_logging_stays_without_it() -> None:
    """Its import runs code of the process. A line says whose it is, with `logging` and without."""
    code = (
        "import sys; from mlflow_perf.core.safe_log import get_logger; log = get_logger('x')\n"
        "log.info('unseen'); log.warning('%s is away', 'it'); log.warning('100%')\n"
        "print('logging' in sys.modules); import logging; log.warning('it is back')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [f"mlflow-perf: {one}\n" for one in ("it is away", "100%", "it is back")]
    assert (done.stdout, done.stderr) == ("False\n", "".join(lines))


def test_a_file_of_the_job_gets_no_message() -> None:
    """A job that closes its standard error may open a file, which then has its number."""
    code = (
        "import os, sys; os.close(2); os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n"
        "from mlflow_perf.core.safe_log import get_logger, takes_text\n"
        "get_logger('x').warning('lost'); print(takes_text(), os.fstat(2).st_size)\n"
        "os.dup2(1, 2); print(takes_text())"
    )
    command = [sys.executable, "-c", code, os.devnull]
    assert subprocess.check_output(command, text=True).split() == ["False", "0", "True"]


def test_a_line_of_ours_is_behind_what_was_written_to_the_file_otherwise(tmp_path: Path) -> None:
    """`> /dev/stderr` opens the file once more, and leaves the place of the descriptor."""
    code = (
        "import sys; from mlflow_perf.core.safe_log import get_logger; log = get_logger('x')\n"
        "log.warning('of ours'); print('of the job', file=open('/dev/stderr', 'w'))\n"
        "log.warning('of ours, too'); print('of the job again', file=sys.stderr)"
    )
    with (tmp_path / "errors").open("w") as errors:
        subprocess.run([sys.executable, "-c", code], stderr=errors, check=True)
    said = (tmp_path / "errors").read_text()
    assert said == "of the job\nmlflow-perf: of ours, too\nof the job again\n"


_SAYS_SOMETHING = """
import logging
from mlflow_perf.core.safe_log import get_logger, takes_text
get_logger("x").warning("of ours")
raise SystemExit(0 if not takes_text() else 9)
"""


@pytest.mark.parametrize("place", ["device", "limit"])
def test_no_line_of_ours_changes_the_exit_code_where_nothing_can_be_written(
    place: str, tmp_path: Path
) -> None:
    """Python keeps a line that it could not write, and ends with 120 when it cannot do so again."""
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9)){_SAYS_SOMETHING}"
    with Path("/dev/full" if place == "device" else tmp_path / "errors").open("w") as errors:
        command = [sys.executable, "-c", _SAYS_SOMETHING if place == "device" else code]
        assert subprocess.run(command, stderr=errors, check=False).returncode == 0


@pytest.mark.parametrize("stream", ["sys.stderr", "io.StringIO()", "None"])
def test_a_closed_standard_error_gets_no_message(stream: str, tmp_path: Path) -> None:
    """The line would stay in the stream's buffer, and the job would end with 120."""
    code = f"import io, os, sys; os.close(2); sys.stderr = {stream}{_SAYS_SOMETHING}"
    code = code.replace("not takes_text()", "takes_text() is (sys.stderr is not sys.__stderr__)")
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, env=variables, cwd=tmp_path, check=False).returncode == 0


def test_a_class_of_the_jobs_for_loggers_is_for_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A colored one shows all, one with a file for each logger leaves a file, one raises."""

    class Colored(logging.Logger):
        def __init__(self, name: str) -> None:
            super().__init__(name, logging.DEBUG)
            self.addHandler(logging.StreamHandler())

    monkeypatch.setattr(logging.Logger.manager, "loggerClass", None)
    monkeypatch.setattr(logging, "_loggerClass", logging.Logger)
    logging.setLoggerClass(Colored)
    get_logger("mlflow_perf.colored").debug("hidden")
    get_logger("mlflow_perf.colored").warning("shown")
    assert type(logging.getLogger("mlflow_perf.colored")) is logging.Logger
    assert type(logging.getLogger("of.job")) is Colored
    assert capsys.readouterr().err == ""  # pytest has handlers
