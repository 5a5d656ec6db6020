"""What a script gets for Azure ML's client."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from mlflow_perf.cli import main
from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.loading import load_job, load_jobs
from mlflow_perf.pipelines.sources import Sources

WritePipeline = Callable[[str], Path]


SUBMITS = """
    import sys
    from azure.ai.ml import MLClient
    from azure.ai.ml.entities import AmlCompute, Data, Environment
    from azure.identity import DefaultAzureCredential

    @dsl.pipeline()
    def one(rows: int, folder):
        a = make(rows=rows, folder=folder)

    def main(rows):
        credential = DefaultAzureCredential()
        credential.get_token("https://management.azure.com/.default")
        client = MLClient(credential, "subscription", "group", "workspace")
        client.compute.get("cpu-cluster")
        client.compute.begin_create_or_update(AmlCompute(name="small")).result()
        asset = client.data.create_or_update(Data(name="raw", path=str(HERE), type="uri_folder"))
        environment = client.environments.create_or_update(Environment(name="e", image="ubuntu"))
        job = one(rows=rows, folder=Input(type="uri_folder", path=f"azureml:raw:{asset.version}"))
        made = client.jobs.create_or_update(job, experiment_name="mine")
        client.jobs.stream(made.name)
        assert client.jobs.get(made.name).status == "Completed"
        client.online_endpoints.begin_create_or_update("endpoint").result()
        raise SystemExit("not reached")

    if __name__ == "__main__":
        main(int(sys.argv[1]))
"""


CHANGES = """
    from azure.ai.ml import MLClient, command

    client = MLClient(None, "subscription", "group", "workspace")
    code = HERE / "code"
    code.mkdir()
    (code / "link").symlink_to("nothing")
    for number in ("one", "two"):
        (code / "number.txt").write_text(number)
        step = command(code=str(code), command="cat number.txt", environment="azureml:e@latest")
        client.jobs.create_or_update(step)
    (code / "link").unlink()
    (code / "number.txt").unlink()
    code.rmdir()
    raise ValueError("oh")
"""


def test_each_job_has_the_code_that_it_was_submitted_with(
    write_pipeline: WritePipeline, tmp_path: Path
) -> None:
    """A script writes its settings for the next one in the same place, removes them, and fails."""
    folders = iter([tmp_path / "first", tmp_path / "second"])
    said: list[str] = []
    sources = Sources(make_folder=lambda: next(folders), say=said.append)
    path = write_pipeline(CHANGES)
    jobs, _ = load_jobs(str(path), {}, sources=sources)
    steps = [job.read().steps.values() for job in jobs]
    codes = [step.code for (step,) in steps]
    assert [(code / "number.txt").read_text() for code in codes if code] == ["one", "two"]
    (end,) = said
    assert end.endswith(" ended with ValueError: oh. Only what it had submitted runs")


def test_code_that_cannot_be_copied_is_as_it_is_when_the_job_runs(
    write_pipeline: WritePipeline,
) -> None:
    """There may be no place for temporary files: a line says so."""

    def fail() -> Path:
        raise OSError("no usable temporary directory")

    said: list[str] = []
    sources = Sources(make_folder=fail, say=said.append)
    path = write_pipeline(CHANGES.partition('    (code / "number.txt").unlink')[0])
    jobs, _ = load_jobs(str(path), {}, sources=sources)
    for job in jobs:
        (step,) = job.read().steps.values()
        assert step.code == path.parent / "code"
    assert said == [
        f"job {n} will run with its code as it is by then: no usable temporary directory"
        for n in (1, 2)
    ]


def test_code_that_has_not_changed_is_copied_once(
    write_pipeline: WritePipeline, tmp_path: Path
) -> None:
    """A script submits the same for many values."""
    folders = iter([tmp_path / "only"])
    sources = Sources(make_folder=lambda: next(folders))
    body = CHANGES.partition('    (code / "number.txt").unlink')[0]
    text = '        (code / "number.txt").write_text(number)\n'
    once = body.replace(text, "").replace(
        "code.mkdir()\n", 'code.mkdir()\n    (code / "a").touch()\n'
    )
    jobs, _ = load_jobs(str(write_pipeline(once)), {}, sources=sources)
    steps = [step for job in jobs for step in job.read().steps.values()]
    assert [step.code for step in steps] == [tmp_path / "only"] * 2


AGAIN = """
    from azure.ai.ml import Input, MLClient, command, dsl
    client = MLClient(None, "subscription", "group", "workspace")
    step = command(
        command="echo ${{inputs.rate}}",
        inputs={"rate": 0.1, "folder": Input(type="uri_folder", path=".")},
        environment="azureml:e@latest",
    )

    @dsl.pipeline()
    def two(rate: float, folder):
        a = step(rate=rate, folder=folder)

    for job in (step, two(rate=0.1, folder=Input(type="uri_folder", path="."))):
        for rate in (0.2, 0.3):
            job.inputs["rate"] = rate
            print(client.jobs.create_or_update(job).name)
        job.inputs["rate"] = 0.4
    step.name = "named"
    assert client.jobs.create_or_update(step) is client.jobs.create_or_update(step)
    assert client.jobs.get("named").type == "command"
"""


def test_an_object_is_a_new_job_each_time_that_it_is_submitted(
    write_pipeline: WritePipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with the values that it had then; one with a name is only updated."""
    jobs, _ = load_jobs(str(write_pipeline(AGAIN)), {})
    assert capsys.readouterr().out.split() == ["job_1", "job_2", "job_3", "job_4"]
    steps = [step for job in jobs for step in job.read().steps.values()]
    assert [step.values["rate"] for step in steps] == [0.2, 0.3, 0.2, 0.3, 0.4]


def test_a_block_in_a_script_is_reported(
    write_pipeline: WritePipeline,
    capsys: pytest.CaptureFixture[str],
    store: str,
) -> None:
    """What stands in for the browser is no mock of a test of the job's."""
    text = """
    import webbrowser
    import mlflow_perf
    from azure.ai.ml import MLClient

    with mlflow_perf.report("prepare") as perf:
        client = MLClient(None, "subscription", "group", "workspace")
        client.jobs.create_or_update(make(rows=3))
    print(webbrowser.open("azure"), "duration_sec" in perf.summary)
    """
    load_jobs(str(write_pipeline(text)), {})
    assert capsys.readouterr().out.splitlines()[-1] == "False True"


def test_azure_is_not_sent_an_object_as_it_was_not_when_it_was_submitted(
    write_pipeline: WritePipeline,
) -> None:
    """By the script's end it has the values of the last submission."""
    command = ["pipeline", "run", str(write_pipeline(AGAIN)), "--on", "azureml"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    assert "submits one object several times" in done.output


def test_settings_hold_for_each_submission_from_the_users_folder(
    write_pipeline: WritePipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script has another current folder by then."""
    (tmp_path / "user" / "data").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "user")
    path = write_pipeline("    import os; os.chdir('/')\n" + AGAIN)
    jobs, _ = load_jobs(str(path), {"rate": "7.5", "folder": "data"})
    steps = [step for job in jobs for step in job.read().steps.values()]
    assert [step.values["rate"] for step in steps] == [7.5] * 5
    assert {step.values["folder"] for step in steps} == {tmp_path / "user" / "data"}


def test_jobs_that_threads_submit_have_their_own_code(write_pipeline: WritePipeline) -> None:
    """None gets that of another one."""
    jobs, _ = load_jobs(str(write_pipeline(THREADS)), {})
    steps = [step for job in jobs for step in job.read().steps.values()]
    assert len(steps) == 8
    for step in steps:
        assert step.code is not None
        assert (step.code / "number.txt").read_text() == step.command.split()[-1]


LATE = """
    import threading, time
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    from azure.ai.ml import MLClient, command

    def submit(name):
        time.sleep(0.3)
        from azure.ai.ml import MLClient
        client = MLClient(None, "subscription", "group", "workspace")
        client.jobs.create_or_update(command(command=name, environment="azureml:e@latest"))
        if name == "pool":
            pool.submit(submit, "later")

    threading.Thread(target=submit, args=["thread"]).start()
    pool = ThreadPoolExecutor(1)  # nobody shuts it down
    pool.submit(submit, "pool")
    processes = ProcessPoolExecutor(1)
    processes.submit(int).result()
"""


def test_what_a_script_leaves_to_threads_is_waited_for(write_pipeline: WritePipeline) -> None:
    """Python waits for them when it exits; and nothing of theirs may reach Azure."""
    jobs, _ = load_jobs(str(write_pipeline(LATE)), {})
    steps = [step for job in jobs for step in job.read().steps.values()]
    assert sorted(step.command for step in steps) == ["later", "pool", "thread"]


def test_a_thread_that_goes_on_is_named(
    write_pipeline: WritePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be why nothing happens."""
    from mlflow_perf.pipelines import scripts

    said: list[str] = []
    monkeypatch.setattr(scripts, "_PATIENCE_SEC", 0.01)
    text = LATE.replace('args=["thread"]', 'name="mine", args=["thread"]')
    load_jobs(str(write_pipeline(text)), {}, sources=Sources(say=said.append))
    assert said == ["the script has ended; waiting for its threads: those of a pool, mine"]


@pytest.mark.parametrize(
    "way", ["pool.submit(submit).result()", "process(submit).join()", "process(late)"]
)
def test_a_job_that_another_process_submits_is_refused(
    write_pipeline: WritePipeline, way: str
) -> None:
    """Nobody got it, and the script went on as if."""
    path = write_pipeline(f"""
        import multiprocessing, time
        from concurrent.futures import ProcessPoolExecutor
        from azure.ai.ml import MLClient, command
        client = MLClient(None, "subscription", "group", "workspace")
        context = multiprocessing.get_context("fork")
        pool = ProcessPoolExecutor(1, mp_context=context)

        def submit():
            client.jobs.create_or_update(command(command="a", environment="azureml:e@latest"))

        def late():
            time.sleep(0.3)
            submit()

        def process(target):
            one = context.Process(target=target)
            one.start()
            return one

        submit()
        {way}
    """)
    said: list[str] = []
    with pytest.raises(PipelineError, match="submits jobs from processes that it starts"):
        load_jobs(str(path), {}, sources=Sources(say=said.append))
    assert said == []


@pytest.mark.parametrize("how", ["Manager()", "Pool(2)", "Process(target=time.sleep, args=[99])"])
def test_processes_hold_no_script_up(write_pipeline: WritePipeline, how: str) -> None:
    """Python's exit ends those of managers and pools; another one is named after a while."""
    is_named = how.startswith("Process")
    path = write_pipeline(f"""
        import multiprocessing, time
        from azure.ai.ml import MLClient
        client = MLClient(None, "subscription", "group", "workspace")
        kept = multiprocessing.get_context("fork").{how}
        if {is_named}:
            kept.start()
        client.jobs.create_or_update(make(rows=3))
    """)
    code = f"""
import multiprocessing
from mlflow_perf.pipelines import scripts
from mlflow_perf.pipelines.loading import load_jobs
from mlflow_perf.pipelines.sources import Sources
scripts._PATIENCE_SEC = {0.1 if is_named else 600.0}
jobs, _ = load_jobs({str(path)!r}, {{}}, sources=Sources(say=print))
print(len(jobs))
for process in multiprocessing.active_children() if {is_named} else ():
    process.kill()
"""
    # In a process of its own, whose exit ends them: a pool with killed processes may never end.
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200
    )
    assert [re.sub(r"-[\d:]+$", "", line) for line in ended.stdout.splitlines()] == [
        *(["the script has ended; its processes go on: ForkProcess"] if is_named else []), "1",
    ]  # fmt: skip


LEAVES = """
    import os, threading, time
    import azure.ai.ml, azure.identity
    client = azure.ai.ml.MLClient(None, "subscription", "group", "workspace")
    ended = HERE / "ended"

    def submit_late():
        while not ended.exists():
            time.sleep(0.01)
        seen = azure.ai.ml.MLClient.__module__, azure.identity.DefaultAzureCredential.__module__
        os.write(1, f"{' '.join(seen)}\\n".encode())  # at once: two processes write
        client = azure.ai.ml.MLClient(None, "subscription", "group", "workspace")
        print(client.jobs.create_or_update(make(rows=4)))

    client.jobs.create_or_update(make(rows=3))
    if os.fork() == 0:
        submit_late()
    threading.Thread(target=submit_late, daemon=True, name="late").start()
"""


def test_what_a_script_leaves_behind_reaches_no_azure(write_pipeline: WritePipeline) -> None:
    """Python ends daemon threads with the script; a forked process is told that nobody is there."""
    path = write_pipeline(LEAVES)
    code = f"""
import os, threading
from pathlib import Path
from mlflow_perf.pipelines import azure
from mlflow_perf.pipelines.loading import load_jobs
from mlflow_perf.pipelines.sources import Sources

def say(text):
    os.write(1, f"{{text}}\\n".encode())

jobs, _ = load_jobs({str(path)!r}, {{}}, sources=Sources(say=say))
late = [one for one in threading.enumerate() if one.name == "late"]
Path({str(path.parent)!r}, "ended").touch()
for one in late:
    one.join()
os.wait()
from azure.ai.ml import MLClient
print(len(jobs), len(late), azure.find_real(MLClient).__module__)
"""
    done = subprocess.run(
        [sys.executable, "-u", "-c", code], capture_output=True, text=True, check=True
    )
    *others, last = done.stdout.splitlines()
    seen = "mlflow_perf.pipelines.stand_in mlflow_perf.pipelines.stand_in"
    told = "a process that the script started has submitted a job after the script's end: "
    assert sorted(others) == sorted([seen, seen, f"{told}it does not run"])
    assert last == "1 1 azure.ai.ml._ml_client"


def test_one_interrupt_ends_the_wait_for_a_thread(write_pipeline: WritePipeline) -> None:
    """As Python, which waits for a thread as well, and for the same one no second time."""
    path = write_pipeline(
        "import threading\nthreading.Thread(target=threading.Event().wait).start()"
    )
    code = f"""
from mlflow_perf.pipelines import loading, scripts, sources
scripts._PATIENCE_SEC = 0.0
say = lambda text: print(text, flush=True)
loading.load_jobs({str(path)!r}, {{}}, sources=sources.Sources(say=say))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert "waiting for its threads" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            process.wait(60)
        finally:
            process.kill()


DIFFERENT = """
    from azure.ai.ml import MLClient, command
    client = MLClient(None, "subscription", "group", "workspace")
    for name, value in (("rows", 5), ("rate", 0.1)):
        line = "echo ${{inputs.%s}}" % name
        job = command(command=line, environment="azureml:e@latest", inputs={name: value})
        client.jobs.create_or_update(job)
"""


def test_a_setting_goes_to_those_jobs_that_have_the_input(write_pipeline: WritePipeline) -> None:
    """A script's jobs differ; a name that none of them has is refused, with all names."""
    path = str(write_pipeline(DIFFERENT))
    jobs, _ = load_jobs(path, {"rate": "0.5"})
    values = [step.values for job in jobs for step in job.read().steps.values()]
    assert values == [{"rows": 5}, {"rate": 0.5}]
    jobs, _ = load_jobs(path, {"rate": "0.5", "rows": "9"})
    values = [step.values for job in jobs for step in job.read().steps.values()]
    assert values == [{"rows": 9}, {"rate": 0.5}]
    with pytest.raises(PipelineError, match=r"--set raw: .* has no such input.*rows"):
        load_jobs(path, {"raw": "1"})


def test_a_script_may_set_again_what_the_user_has_set(write_pipeline: WritePipeline) -> None:
    """By attribute, too; the user's value holds."""
    text = AGAIN.replace('job.inputs["rate"] = rate', "job.inputs.rate = rate")
    jobs, _ = load_jobs(str(write_pipeline(text)), {"rate": "7.5"})
    steps = [step for job in jobs for step in job.read().steps.values()]
    assert [step.values["rate"] for step in steps] == [7.5] * 5


THREADS = """
    from concurrent.futures import ThreadPoolExecutor
    from azure.ai.ml import MLClient, command
    client = MLClient(None, "subscription", "group", "workspace")

    def submit(number):
        code = HERE / f"code-{number}"
        code.mkdir()
        (code / "number.txt").write_text(str(number))
        line = f"cat number.txt # {number}"
        step = command(code=str(code), command=line, environment="azureml:e@latest")
        client.jobs.create_or_update(step)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(submit, range(8)))
"""


def test_the_job_is_the_one_that_a_script_submits(
    write_pipeline: WritePipeline, tmp_path: Path
) -> None:
    """MLClient is stood in for: data, compute and environments answer, and the job is taken."""
    pytest.importorskip("azure.identity")
    import azure.ai.ml

    real, sources = azure.ai.ml.MLClient, Sources()
    path = write_pipeline(SUBMITS)
    jobs, _ = load_jobs(str(path), {}, sources=sources, arguments=["7"])
    graph = jobs[0].read()
    assert graph.experiment == "mine"
    assert graph.steps["a"].values["rows"] == 7
    assert graph.steps["a"].values["folder"] == tmp_path
    assert azure.ai.ml.MLClient is real
    with pytest.raises(PipelineError, match=r"IndexError: .* give them after `--`"):
        load_jobs(str(path), {})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("components.get('x', '1')", "takes the component x 1 of the workspace"),
        ("models.get('m', 1)", "calls MLClient.models.get, which only Azure ML has"),
        ("batch_endpoints.invoke('e')", "calls MLClient.batch_endpoints.invoke"),
    ],
)
def test_a_call_that_only_azure_answers_is_refused(
    write_pipeline: WritePipeline, call: str, message: str
) -> None:
    """The refusal names the call, even where the script catches it."""
    path = write_pipeline(f"""
        from azure.ai.ml import MLClient
        client = MLClient.from_config(None)
        try:
            found = client.{call}
        except Exception:
            pass
        found.use()
    """)
    with pytest.raises(PipelineError, match=re.escape(message)):
        load_job(str(path), {})
