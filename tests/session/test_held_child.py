"""A command below its wrapper: every signal reaches it, and it dies with the wrapper."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.terminal import Terminal

WRAPPER = """
import sys
from mlflow_perf.session.held_child import HeldChild
child = HeldChild(sys.argv[1:])
child.release()
code, _ = child.wait(lambda: None)
child.reap()
sys.exit(code)
"""
# Says its PID, then the name of each signal that it gets, until it gets a line.
LISTENER = """
import os, signal, sys
def tell(number, _):
    os.write(1, b"%d\\n" % number)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, tell)
os.write(1, b"%d\\n" % os.getpid())
sys.stdin.readline()
"""
# The same for signals of which none is merged by Python.
COUNTER = """
import os, signal
numbers = signal.valid_signals()
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
os.write(1, b"%d\\n" % os.getpid())
while True:
    os.write(1, b"%d\\n" % signal.sigwait(numbers))
"""
# Stops the command alone, and lets it alone go on once its wrapper has seen the stop: the wrapper
# passes on a signal that it gets later and that has a higher number.
ALONE = """
how=$1; shift
"$@" sh -c 'trap "exit 3" URG; echo $$ >pid; while :; do read line; sleep 0.1; done' &
wrapper=$!
until [ -s pid ]; do sleep 0.01; done
is() { grep -Eq "$2" /proc/$1/status; }
command=$(cat pid)
kill -s $how $command
until is $command '^State:.T'; do sleep 0.01; done
kill -s URG $wrapper
until is $command '^ShdPnd:.*4.....$' || is $wrapper '^State:.T'; do sleep 0.01; done
is $wrapper '^State:.T' && echo stopped
kill -s CONT $command
wait $wrapper
"""


@contextlib.contextmanager
def wrapped(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command below a wrapper, with pipes to it."""
    process = subprocess.Popen(
        # Job control ignores a process group whose parent is in another session.
        [sys.executable, "-c", WRAPPER, *argv],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=os.setpgrp,  # noqa: PLW1509
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def read_line(process: subprocess.Popen[str]) -> int:
    """Return the number in the next line of a process's output."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def read_state(pid: int) -> str:
    """Return a process's state: R, S, T for stopped, Z; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait_for_state(pid: int, states: str) -> None:
    """Wait until a process is in one of the states."""
    until = time.monotonic() + 60
    while read_state(pid) not in states:
        assert time.monotonic() < until, read_state(pid)
        time.sleep(0.01)


def test_every_signal_is_passed_on() -> None:
    """Also those that hardly anybody sends: of real time, SIGURG, a watchdog's SIGABRT."""
    stops = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    numbers = signal.valid_signals() - stops - {signal.SIGKILL, signal.SIGCHLD}
    with wrapped(sys.executable, "-c", LISTENER) as process:
        read_line(process)
        for number in sorted(numbers):
            process.send_signal(number)
            assert read_line(process) == number
        assert process.communicate("\n")[0] == ""
        assert process.returncode == 0


@pytest.mark.parametrize("name", ["USR1", "TERM"])
def test_what_the_command_sends_its_parent_does_not_come_back(name: str) -> None:
    """It would die of its own message."""
    with wrapped("sh", "-c", f"kill -{name} $PPID; sleep 0.3; exit 7") as process:
        assert process.wait(60) == 7


def test_an_alarm_that_was_set_for_the_command_ends_it() -> None:
    """`perl -e 'alarm 3; exec @ARGV' mlflow-perf run -- CMD`: the wrapper has the timer now."""
    alarm = "import signal; signal.setitimer(signal.ITIMER_REAL, 0.1)\nchild.release()"
    wrapper = WRAPPER.replace("child.release()", alarm)
    done = subprocess.run([sys.executable, "-c", wrapper, "sleep", "60"], check=False, timeout=60)
    assert done.returncode == 128 + signal.SIGALRM


GROUP_NUMBERS = [
    signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP, signal.SIGRTMIN + 1,
]  # fmt: skip


def test_a_signal_for_the_group_comes_once() -> None:
    """`kill -- -PGID`, `timeout`, a supervisor: the command has got it when the wrapper has."""
    with wrapped(sys.executable, "-c", LISTENER) as process:
        read_line(process)
        for number in GROUP_NUMBERS * 3:
            os.killpg(process.pid, number)
            assert read_line(process) == number
            # Passed on later than a second one of the first would be.
            process.send_signal(signal.SIGURG)
            assert read_line(process) == signal.SIGURG
        assert process.communicate("\n")[0] == ""


def test_a_signal_for_one_after_the_other_comes_once() -> None:
    """As service managers and Slurm send it, to the wrapper first."""
    with wrapped(sys.executable, "-c", LISTENER) as process:
        command = read_line(process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in (process.pid, command, *(int(c) for c in children if int(c) != command)):
            os.kill(pid, signal.SIGTERM)
        assert read_line(process) == signal.SIGTERM
        process.send_signal(signal.SIGURG)
        assert read_line(process) == signal.SIGURG
        assert process.communicate("\n")[0] == ""


def _send_to_all(pattern: str, number: int) -> None:
    """Send a signal to one process after the other, by its command line, as `pkill -f` does."""
    for pid in sorted(int(one.name) for one in Path("/proc").glob("[0-9]*")):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            if pid != os.getpid() and re.search(os.fsencode(pattern), line, re.DOTALL):
                os.kill(pid, number)


def test_a_signal_for_all_whose_command_line_has_a_word_comes_once(tmp_path: Path) -> None:
    """As `pkill -f train.py` sends it; and one for the wrapper's own words comes, too."""
    script = tmp_path / f"train{os.getpid()}.py"
    script.write_text(LISTENER, encoding="utf-8")
    with wrapped(sys.executable, str(script)) as process:
        read_line(process)
        _send_to_all(script.name, signal.SIGTERM)
        assert read_line(process) == signal.SIGTERM
        _send_to_all(f"HeldChild.*{script.name}", signal.SIGUSR1)
        assert read_line(process) == signal.SIGUSR1
        process.send_signal(signal.SIGURG)
        assert read_line(process) == signal.SIGURG
        assert process.communicate("\n")[0] == ""


def test_signals_for_the_wrapper_alone_all_come() -> None:
    """Also between those for the group; the kernel merges only those of one standard number."""
    end = signal.SIGRTMIN + 1
    with wrapped(sys.executable, "-c", COUNTER) as process:
        read_line(process)
        for _ in range(5):
            for _ in range(3):
                process.send_signal(signal.SIGRTMIN)
            group = ["sh", "-c", f"kill -s USR1 -- -{process.pid}"]
            subprocess.run(group, check=True, start_new_session=True)
            process.send_signal(signal.SIGUSR2)
            process.send_signal(end)
            came = list(iter(lambda: read_line(process), end))
            assert sorted(came) == [signal.SIGUSR1, signal.SIGUSR2, *[signal.SIGRTMIN] * 3]


def test_a_leaders_command_that_left_the_group_gets_its_signals() -> None:
    """The first process of a group cannot leave it, and so would have got them without us."""
    leave = f"import os; os.setpgid(0, 0)\n{LISTENER}"
    with wrapped(sys.executable, "-c", leave) as process:
        read_line(process)
        os.killpg(process.pid, signal.SIGTERM)
        assert read_line(process) == signal.SIGTERM


def test_an_ignored_sigchld_stays_ignored_for_the_command() -> None:
    """The wrapper itself waits for its child; the command inherits what the wrapper got."""
    ignoring = f"import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n{WRAPPER}"
    argv = [sys.executable, "-c", ignoring, "grep", "SigIgn", "/proc/self/status"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[1], 16) >> (signal.SIGCHLD - 1) & 1


@pytest.mark.parametrize("trap", ["", "trap '' PIPE; ", "trap '' XFSZ; "])
def test_what_a_shell_ignores_stays_ignored_for_the_command(trap: str) -> None:
    """Python has overwritten how it was started with SIGPIPE and SIGXFSZ."""
    command = "grep SigIgn /proc/self/status"
    wrapped_in = f'{trap}{command}; "$@" {command}; exit 0'
    argv = ["sh", "-c", wrapped_in, "sh", sys.executable, "-c", WRAPPER]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    bare, below = done.stdout.splitlines()
    assert below == bare


def test_a_signal_of_the_wrappers_own_write_is_not_passed_on() -> None:
    """A full disk quota or a broken pipe of ours ends no command: `ulimit -f`, `| head`."""
    write = "try: os.write(other, b'!')\nexcept BrokenPipeError: pass\n"
    broken = f"child.release()\nimport os\nend, other = os.pipe()\nos.close(end)\n{write}"
    code = WRAPPER.replace("child.release()\n", broken)
    command = [sys.executable, "-c", code, "sh", "-c", "read line; exit 3"]
    assert subprocess.run(command, input=b"\n", timeout=60, check=False).returncode == 3


# The command ends after the wrapper has seen that it still runs, and before it asks for stops.
ENDS_BETWEEN = """
import os, signal, time
from mlflow_perf.session.held_child import HeldChild
child = HeldChild(["sleep", "100"])
child.release()
seen = child._stop_with_command
def stop():
    if not ended:
        ended.append(os.kill(child.pid, signal.SIGTERM))
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    seen()
ended = []
child._stop_with_command = stop
print(child.wait(lambda: None))
child.reap()
"""


def test_a_command_that_ends_between_two_looks_is_seen() -> None:
    """The kernel knows no child that could still stop then; it is not another's."""
    done = subprocess.run(
        [sys.executable, "-c", ENDS_BETWEEN], capture_output=True, text=True, check=False
    )
    assert done.stdout == "(143, 15)\n", done.stderr


def test_a_killed_wrapper_takes_its_command_along() -> None:
    """SIGKILL cannot be passed on; the kernel kills the command when its parent dies."""
    with wrapped("sh", "-c", "echo $$; exec sleep 600") as process:
        command = read_line(process)
        process.kill()
        wait_for_state(command, "Z")


def test_a_stopped_command_stops_its_wrapper_and_both_go_on() -> None:
    """So the shell's Ctrl-Z, `kill -TSTP`, `fg` and `kill -CONT` work as without the wrapper."""
    with wrapped("sh", "-c", "echo $$; read line; exit 3") as process:
        command = read_line(process)
        process.send_signal(signal.SIGTSTP)
        wait_for_state(command, "T")
        wait_for_state(process.pid, "T")
        process.send_signal(signal.SIGCONT)
        wait_for_state(command, "S")
        process.communicate("\n")
        assert process.returncode == 3


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Terminal]:
    """Return a terminal with a shell that has job control, in a folder; `$W` wraps a command."""
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    (tmp_path / "wrapper").write_text(WRAPPER)
    wrapper = f"{sys.executable} {tmp_path}/wrapper"
    environ = {"PATH": os.environ["PATH"], "PS1": "", "TERM": "dumb", "W": wrapper}
    terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], environ)
    terminal.type(f"stty -echo; set -b; cd {tmp_path}; echo rea''dy\n")
    terminal.read_until("ready")
    yield terminal
    terminal.hang_up()


def test_a_command_ends_with_the_terminal_that_its_wrapper_began(tmp_path: Path) -> None:
    """The kernel tells only the first process of the session, as below `tmux` or `ssh -t`."""
    script = f"trap 'echo >{tmp_path}/told; exit 9' HUP; echo rea''dy; while :; do sleep 0.1; done"
    terminal = Terminal([sys.executable, "-c", WRAPPER, "sh", "-c", script], dict(os.environ))
    terminal.read_until("ready")
    assert terminal.hang_up() == 9
    assert (tmp_path / "told").exists()


def test_a_terminal_that_is_gone_ends_what_the_command_left_behind(tmp_path: Path) -> None:
    """As at the end of the session's first process, although the wrapper ends later."""
    begin = "import os; left = os.open(sys.argv[-1], os.O_RDONLY | os.O_NONBLOCK)\nchild ="
    end = "os.set_blocking(left, True); sys.exit(1 if os.read(left, 9) else code)"
    wrapper = WRAPPER.replace("child =", begin, 1).replace("sys.exit(code)", end)
    os.mkfifo(tmp_path / "left")
    left = """sh -c 'echo rea""dy; sleep 60; echo still there >&9' 9<>"$0" & exec sleep 600"""
    argv = [sys.executable, "-c", wrapper, "sh", "-c", left, str(tmp_path / "left")]
    terminal = Terminal(argv, dict(os.environ))
    terminal.read_until("ready")
    assert terminal.hang_up() == 129


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGSTOP])
def test_a_command_that_is_stopped_alone_goes_on_alone(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Who stops and continues only the command, as `cpulimit` does, does not wake its wrapper."""
    name = number.name.removeprefix("SIG")
    argv = ["sh", "-c", ALONE, "sh", name, sys.executable, "-c", WRAPPER]
    with subprocess.Popen(
        argv,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        preexec_fn=os.setpgrp,  # noqa: PLW1509
    ) as process:
        try:
            assert process.communicate(timeout=60)[0] == b""
            assert process.returncode == 3
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("name", ["TSTP", "STOP"])
def test_a_script_at_a_terminal_stops_its_command_alone(
    name: str, shell: Terminal, tmp_path: Path
) -> None:
    """The shell waits for the script, whose wrapper must go on with the command."""
    (tmp_path / "script").write_text(ALONE)
    shell.type(f"sh script {name} $W; echo code=$?\n")
    shell.read_until("stopped|code=")
    assert "stopped" not in shell.screen
    shell.read_until("code=3")


@pytest.mark.parametrize(
    ("command", "stop"),
    [
        ("$W sh -c 'echo up; read line; exit 3'", "\x1a"),
        ("$W sh -c 'echo up; read line; exit 3' &", ""),
        ("$W sh -c 'echo up; kill -s STOP $$; exit 3'", ""),
        ("$W sh -c 'echo up; kill -s TSTP $$; exit 3'", ""),
        ("$W bash --norc -ic 'echo up; suspend; exit 3'", ""),
    ],
    ids=["key", "background reads", "stops itself", "asks itself", "inner shell"],
)
def test_the_shell_sees_every_stop(command: str, stop: str, shell: Terminal) -> None:
    """It prints "Stopped" and takes the terminal back, and `fg` goes on."""
    shell.type(f"{command}\n")
    shell.read_until("up")
    shell.type(stop)
    shell.read_until("Stopped")
    shell.type("fg; echo code=$?\n")
    shell.type("\n")
    shell.read_until("code=3")


def test_a_wrapper_that_was_stopped_for_long_goes_on_with_its_command() -> None:
    """`kill -STOP`, a debugger, `scontrol suspend`: its wait is over when it goes on."""
    short = WRAPPER.replace(
        "child.release()", "from mlflow_perf.session import held_child\n"
        "held_child._LOOK_EVERY_SEC = 0.05\nchild.release()",
    )  # fmt: skip
    command = [sys.executable, "-c", short, "sh", "-c", "echo $$; read line; exit 3"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        read_line(process)
        for _ in range(3):
            process.send_signal(signal.SIGSTOP)
            wait_for_state(process.pid, "T")
            time.sleep(0.1)
            process.send_signal(signal.SIGCONT)
            wait_for_state(process.pid, "SR")
        process.communicate("\n")
        assert process.returncode == 3


@pytest.fixture
def one_process() -> Iterator[Path]:
    """Return a control group that lets one process live."""
    group = Path(f"/sys/fs/cgroup/pids/mlflow-perf-{os.getpid()}")
    try:
        group.mkdir()
        (group / "pids.max").write_text("1")
    except OSError:
        pytest.skip("needs the right to make a control group for the number of processes")
    yield group
    group.rmdir()


def test_without_a_process_for_it_the_command_replaces_the_wrapper(
    one_process: Path, tmp_path: Path
) -> None:
    """Where no further process may start, the command itself runs, unreported: one warning."""
    script = (
        "import logging, sys; from mlflow_perf.core.settings import Settings; "
        "from mlflow_perf.session.command import run_command; logging.basicConfig(); "
        "sys.exit(run_command(['sh', '-c', 'echo ran; exit 5'], 'x', Settings()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False,
        preexec_fn=lambda: (one_process / "cgroup.procs").write_text(str(os.getpid())),
        env={**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:1"}, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (5, "ran\n"), done.stderr
    assert done.stderr.count("without a report") == 1
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*spool*"))


def test_the_first_process_of_a_container_reaps_orphans() -> None:
    """A daemon whose parent has ended is the wrapper's child: the job may wait until it is gone."""
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if not shutil.which("unshare") or subprocess.call([*apart, "true"]):
        pytest.skip("this machine lets nobody make a PID namespace")
    daemon = "(sleep 1000 >&- & echo $!)"
    wait_for_it = "while kill -0 $pid 2>/dev/null; do sleep 0.01; done"
    job = f"pid=$( {daemon} ); kill $pid; {wait_for_it}; exit 3"
    command = [*apart, sys.executable, "-c", WRAPPER, "sh", "-c", job]
    assert subprocess.run(command, check=False, timeout=120).returncode == 3


def test_what_names_the_wrapper_names_the_command() -> None:
    """Systemd gives its sockets to one process, and awaits a sign of life from one."""
    env = os.environ | {"WATCHDOG_PID": "1"}
    command = 'test "$LISTEN_PID" = $$ && test "$WATCHDOG_PID" = 1'
    start = 'LISTEN_PID=$$ exec "$@"'
    argv = ["sh", "-c", start, "sh", sys.executable, "-c", WRAPPER, "sh", "-c", command]
    assert subprocess.run(argv, env=env, check=False, timeout=120).returncode == 0


@pytest.mark.e2e
def test_a_wrapper_that_is_stopped_says_how_long_it_did_not_look() -> None:
    """The command goes on and ends meanwhile; when, nobody can know."""
    wrapper = subprocess.Popen(
        [sys.executable, "-c", f"{WRAPPER[:-15]}print(child.unseen_sec)", "sh", "-c",
         "echo $$; read line"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert wrapper.stdin is not None
    assert wrapper.stdout is not None
    pid = int(wrapper.stdout.readline())
    wrapper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, wrapper.pid, os.WSTOPPED | os.WNOWAIT)
    wrapper.stdin.write("\n")
    wrapper.stdin.flush()
    while "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]:
        time.sleep(0.01)
    time.sleep(1.5)
    wrapper.send_signal(signal.SIGCONT)
    assert float(wrapper.communicate(timeout=60)[0]) >= 1.5


def test_only_a_signal_that_asks_to_end_ends_the_wait_for_others() -> None:
    """Not SIGCONT, which Slurm and systemd send beside SIGTERM, nor a new size of the terminal."""
    waits = "child.wait_while(lambda: print(0, flush=True) is None)\nprint(*child.received)"
    wrapper = subprocess.Popen(
        [sys.executable, "-c", f"{WRAPPER[:-15]}{waits}", "true"], stdout=subprocess.PIPE, text=True
    )
    assert read_line(wrapper) == 0
    wrapper.send_signal(signal.SIGCONT)
    wrapper.send_signal(signal.SIGWINCH)
    assert [read_line(wrapper) for _ in range(5)] == [0] * 5
    wrapper.send_signal(signal.SIGTERM)
    *_, received = wrapper.communicate(timeout=60)[0].splitlines()
    assert {int(number) for number in received.split()} == {
        signal.SIGCONT, signal.SIGWINCH, signal.SIGTERM,
    }  # fmt: skip


HELD = """
import os, signal, sys
from mlflow_perf.session.held_child import HeldChild
signal.signal(signal.SIGTERM, signal.default_int_handler)
child = HeldChild(["sleep", "600"])
os.kill(child.pid, int(sys.argv[1]))
child.release()
print(*child.wait(lambda: None))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_for_a_command_that_is_still_held_ends_it(number: int) -> None:
    """A handler of its wrapper's does not take it: the exit code would be 127."""
    said = subprocess.check_output([sys.executable, "-c", HELD, str(int(number))], text=True)
    assert said.split() == [str(128 + number), str(int(number))]


def test_a_script_without_its_interpreter_is_named(tmp_path: Path) -> None:
    script = tmp_path / "fit"
    script.write_text("#!/nowhere/python\n")
    script.chmod(0o755)
    argv = [sys.executable, "-c", WRAPPER, str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    said = "the interpreter or loader that it names is missing"
    assert done.stderr == f"mlflow-perf: {script}: {said}\n"
