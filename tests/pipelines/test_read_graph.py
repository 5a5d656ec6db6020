"""From a pipeline job to the flat graph: what is kept, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.graph import Parts, Ref

GraphOf = Callable[..., Any]


def test_literals_of_the_pipeline_reach_the_steps(graph_of: GraphOf) -> None:
    """A step's input holds the pipeline input's value, its own literal, or the default."""
    graph = graph_of("""
        @dsl.pipeline(name="named", experiment_name="exp", description="What it does.")
        def p(n: int = 7, share: float = 0.5):
            a = make(rows=n, kind="b", rate=share)
    """)
    assert graph.steps["a"].values == {
        "rows": 7, "kind": "b", "rate": 0.5, "fast": False, "folder": None, "file": None,
    }  # fmt: skip
    assert graph.inputs == {"n": 7, "share": 0.5}
    assert (graph.name, graph.experiment, graph.description) == ("named", "exp", "What it does.")


def test_nested_pipelines_are_flattened(graph_of: GraphOf, tmp_path: Path) -> None:
    """A nested step has its pipeline's name before its own, and references cross the border."""
    (tmp_path / "inside.py").write_text(
        "from pathlib import Path\n"
        "from azure.ai.ml import Input, dsl, load_component\n"
        "make = load_component(str(Path(__file__).parent / 'make' / 'component.yaml'))\n"
        "@dsl.pipeline()\n"
        "def inner(rows: int, folder: Input(type='uri_folder', optional=True) = None):\n"
        "    deep = make(rows=rows, folder=folder)\n"
        "    return {'result': deep.outputs.out}\n"
    )
    graph = graph_of("""
        from inside import inner

        @dsl.pipeline()
        def outer(rows: int = 7):
            first = make(rows=rows)
            nested = inner(rows=rows, folder=first.outputs.out)
            alone = inner(rows=2)
            last = make(folder=nested.outputs.result)
            return {
                "final": last.outputs.out,
                "middle": nested.outputs.result,
                "again": nested.outputs.result,
            }
    """)
    assert list(graph.steps) == ["first", "nested.deep", "alone.deep", "last"]
    assert graph.steps["nested.deep"].values["rows"] == 7
    assert graph.steps["nested.deep"].values["folder"] == Ref("first", "out")
    assert graph.steps["alone.deep"].values["folder"] is None
    assert graph.steps["last"].needs == ("nested.deep",)
    middle = Ref("nested.deep", "out")
    assert graph.outputs == {"final": Ref("last", "out"), "middle": middle, "again": middle}


def test_groups_spread_to_their_members(graph_of: GraphOf) -> None:
    """A group's members are inputs named `group.member`, and --set reaches them."""
    body = """
        from azure.ai.ml.dsl._group_decorator import group

        @group
        class Sizes:
            rows: int = 3
            rate: float = 0.25

        @dsl.pipeline()
        def p(sizes: Sizes = Sizes()):
            a = make(rows=sizes.rows, rate=sizes.rate)
    """
    assert graph_of(body).inputs == {"sizes.rows": 3, "sizes.rate": 0.25}
    changed = graph_of(body, **{"sizes.rows": "9"})
    assert changed.steps["a"].values["rows"] == 9
    assert changed.steps["a"].values["rate"] == 0.25


def test_bindings_inside_a_text_are_joined(graph_of: GraphOf, tmp_path: Path) -> None:
    """A text with the pipeline's inputs in it becomes one literal."""
    (tmp_path / "say").mkdir()
    (tmp_path / "say" / "component.yaml").write_text(
        "name: say\nversion: 0.1.0\ntype: command\n"
        "inputs:\n  text: {type: string}\n"
        "environment: azureml:some:1\ncommand: echo ${{inputs.text}}\n"
    )
    graph = graph_of("""
        say = load_component(str(HERE / "say" / "component.yaml"))

        @dsl.pipeline()
        def p(name: str = "x", n: int = 3):
            a = say(text=f"run-{name}-of-{n}")
    """)
    assert graph.steps["a"].values["text"] == "run-x-of-3"


def test_paths_are_made_absolute(graph_of: GraphOf, tmp_path: Path) -> None:
    """A relative input path starts at the pipeline file's folder."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_text("a")
    graph = graph_of("""
        @dsl.pipeline()
        def _p(folder: Input(type="uri_folder"), file: Input(type="uri_file")):
            a = make(folder=folder, file=file)

        job = _p(
            folder=Input(type="uri_folder", path="raw"),
            file=Input(type="uri_file", path="raw/a.txt"),
        )
        del _p
    """)
    values = graph.steps["a"].values
    assert (values["folder"], values["file"]) == (tmp_path / "raw", tmp_path / "raw" / "a.txt")


def test_the_node_has_the_last_word_on_the_environment(graph_of: GraphOf) -> None:
    """Environment variables of the node override those of the component."""
    graph = graph_of("""
        @dsl.pipeline()
        def p():
            a = make()
            a.environment_variables = {"BOTH": "node", "NUMBER": 3}
    """)
    assert graph.steps["a"].environment == {"FROM": "component", "BOTH": "node", "NUMBER": "3"}


def test_distribution_and_limits(graph_of: GraphOf) -> None:
    """Nodes, ranks per node, time limit and retries come from the node."""
    graph = graph_of("""
        @dsl.pipeline()
        def p():
            a = make()
            a.distribution = MpiDistribution(process_count_per_instance=3)
            a.resources = {"instance_count": 2}
            a.set_limits(timeout=90)
            b = make()
            b.distribution = PyTorchDistribution()
            b.retry_settings = {"max_retries": 2}
    """)
    a, b = graph.steps["a"], graph.steps["b"]
    assert (a.instances, a.processes, a.distribution, a.ranks) == (2, 3, "mpi", 6)
    assert (a.timeout_sec, b.retries, b.distribution) == (90, 2, "pytorch")


REFUSED = [
    ("a = make(rows=0)", "Step 'a': input rows is 0, below its minimum 1"),
    ("a = make(rows=101)", "above its maximum 100"),
    ("a = make(rows='many')", "input rows is 'many', but must be a whole number"),
    ("a = make(rows=1.5)", "input rows is 1.5, but must be a whole number"),
    ("a = make(kind='c')", "input kind is 'c', but must be one of 'a', 'b'"),
    ("a = make(fast='perhaps')", "input fast is 'perhaps', but must be true or false"),
    ("a = make(rate=2)", "input rate is 2, above its maximum 1"),
    (
        "a = make(folder=Input(type='uri_folder', path='azureml:data:1'))",
        "Step 'a' takes azureml:data:1 as an input, which is not on this machine",
    ),
    (
        "a = make(folder=Input(type='uri_folder', path='abfss://x@y.z/w'))",
        "not on this machine: download it",
    ),
    (
        "a = make(folder=Input(type='uri_folder', path='not/there'))",
        "not/there, which does not exist",
    ),
    (
        "a = make(folder=Input(type='uri_folder', path=str(HERE / 'pipe.py')))",
        "must be a folder",
    ),
    ("a = make(file=Input(type='uri_file', path=str(HERE)))", "must be a file"),
    ("a = make(folder='text')", "Step 'a'"),
    (
        "a = make(); a.distribution = RayDistribution()",
        "Step 'a' is distributed with ray",
    ),
    ("a = make(); a.resources = {'instance_count': 2}", "asks for 2 instances but names no dist"),
    ("a = make(); a.set_limits(timeout=-1)", "Step 'a': timeout is -1, but must be a number of"),
    ("a = make(); a.set_limits(timeout='soon')", "Step 'a': timeout is 'soon'"),
    ("a = make(); a.retry_settings = {'max_retries': -3}", "Step 'a': max_retries is -3"),
    ("a = make(); a.resources = {'instance_count': 'two'}", "Step 'a': instance_count is 'two'"),
    (
        (
            "from azure.ai.ml.sweep import Choice; c = make(rows=Choice([1, 2])); "
            "a = c.sweep(primary_metric='m', goal='minimize', sampling_algorithm='random')"
        ),
        "Step 'a' is of type sweep",
    ),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_unsupported_parts_are_refused_by_name(graph_of: GraphOf, line: str, message: str) -> None:
    """A bad graph is refused before anything runs, with the node's name and the reason."""
    body = "\n".join(["@dsl.pipeline()", "def p():", *(f"    {x}" for x in line.split("; "))])
    with pytest.raises(PipelineError, match=_literal(message)):
        graph_of(body)


def _read_yaml(tmp_path: Path, **texts: str) -> Any:
    """Write YAML files, and return the graph of the last one."""
    from mlflow_perf.pipelines.loading import load_job
    from mlflow_perf.pipelines.read_graph import read_graph

    for name, text in texts.items():
        path = tmp_path / f"{name}.yml"
        path.write_text(dedent(text))
    job, found = load_job(str(path), {})
    return read_graph(job, source=found)


def test_a_yaml_pipeline_resolves_its_bindings(tmp_path: Path) -> None:
    """Inputs, outputs and nested pipelines of a YAML file are bound as Azure ML binds them."""
    (tmp_path / "data").mkdir()
    graph = _read_yaml(
        tmp_path,
        inner="""
            type: pipeline
            inputs: {raw: {type: uri_folder}}
            outputs: {model: {type: uri_folder}}
            jobs:
              fit:
                type: command
                command: cp ${{inputs.raw}}/x ${{outputs.model}}
                environment: azureml:some@latest
                inputs: {raw: {type: uri_folder, path: '${{parent.inputs.raw}}'}}
                outputs: {model: '${{parent.outputs.model}}'}
        """,
        pipeline="""
            type: pipeline
            display_name: My pipeline
            inputs: {who: world, n: 3, raw: {type: uri_folder, path: ./data}}
            outputs: {said: {type: uri_file}, model: }
            jobs:
              second:
                command: cat ${{inputs.a}} ${{inputs.model}}
                environment: {image: ubuntu}
                inputs:
                  a: {path: '${{parent.jobs.first.outputs.out}}', type: uri_file}
                  model: ${{parent.jobs.train.outputs.model}}
              first:
                command: echo ${{inputs.who}} ${{inputs.n}} > ${{outputs.out}}
                environment: {image: ubuntu}
                inputs: {who: '${{parent.inputs.who}}', n: '${{parent.inputs.n}}'}
                outputs: {out: '${{parent.outputs.said}}'}
              train:
                type: pipeline
                component: ./inner.yml
                inputs: {raw: '${{parent.inputs.raw}}'}
                outputs: {model: '${{parent.outputs.model}}'}
        """,
    )
    assert graph.title == "My pipeline"
    assert graph.steps["first"].values == {"who": "world", "n": 3}
    assert graph.steps["first"].outputs["out"].type == "uri_file"
    assert graph.steps["first"].component == "first"
    assert graph.steps["train.fit"].values == {"raw": tmp_path / "data"}
    assert graph.steps["second"].needs == ("first", "train.fit")
    assert graph.outputs == {"said": Ref("first", "out"), "model": Ref("train.fit", "model")}


def test_a_command_job_is_a_graph_of_one_step(tmp_path: Path) -> None:
    """Without a display name, a node has its file's name."""
    graph = _read_yaml(
        tmp_path,
        hello="""
            type: command
            command: echo ${{inputs.who}}
            environment: {image: ubuntu, conda_file: ./conda.yml}
            inputs: {who: world}
        """
        if (tmp_path / "conda.yml").write_text("dependencies: [python=3.8, {pip: [pyjokes]}]")
        else "",
    )
    step = graph.steps["hello"]
    assert (step.values, graph.experiment) == ({"who": "world"}, "")
    assert step.wanted is not None
    assert (step.wanted.python, step.wanted.requirements) == ("3.8", ("pyjokes",))
    assert step.wanted.image == "ubuntu"


BODY = "    command: echo\n    environment: {image: u}\n    outputs: {o: {type: uri_file}}\n"


def _take(binding: str) -> str:
    return f"{BODY}    inputs: {{x: '${{{{parent.{binding}}}}}'}}\n"


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        (
            f"  a:\n{_take('jobs.b.outputs.o')}  b:\n{_take('jobs.a.outputs.o')}",
            "The steps a, b wait for each other",
        ),
        (
            f"  a:\n{_take('jobs.c.outputs.o')}",
            "line 7: ${{parent.jobs.c.outputs.o}} names nothing that this pipeline has",
        ),
        (
            f"  a:\n{_take('inputs.c')}",
            "line 7: ${{parent.inputs.c}} names nothing that this pipeline has",
        ),
        ("  a:\n    component: azureml:mine@latest\n", "uses the registered component mine@latest"),
        (
            "  a:\n    component: azureml://registries/shared/components/one/versions/1\n",
            "uses the component one of the registry shared",
        ),
    ],
)
def test_a_wrong_binding_of_a_yaml_file_is_named(tmp_path: Path, jobs: str, message: str) -> None:
    """A circle, a missing step, a missing input and a registry are refused, each by its name."""
    with pytest.raises(PipelineError, match=_literal(message)) as caught:
        _read_yaml(tmp_path, pipe=f"type: pipeline\njobs:\n{jobs}")
    assert str(caught.value).startswith(str(tmp_path))  # the file comes first


def test_inputs_without_annotation_take_anything(graph_of: GraphOf, tmp_path: Path) -> None:
    """A path, a literal, and nothing for an argument that no step needs."""
    graph = graph_of(f"""
        @dsl.pipeline()
        def _p(rows, folder, kind="a", unused=None):
            a = make(rows=rows, folder=folder, kind=kind)

        job = _p(rows=4, folder=Input(type="uri_folder", path={str(tmp_path)!r}))
    """)
    values = graph.steps["a"].values
    assert (values["rows"], values["folder"], values["kind"]) == (4, tmp_path, "a")


def test_a_path_is_set_without_annotation(graph_of: GraphOf, tmp_path: Path) -> None:
    """--set gives a path to an input that declares no type."""
    body = """
        @dsl.pipeline()
        def p(rows, folder):
            a = make(rows=rows, folder=folder)
    """
    values = graph_of(body, rows="4", folder=str(tmp_path)).steps["a"].values
    assert (values["rows"], values["folder"]) == (4, tmp_path)


def test_a_parallel_step_is_refused_by_name(graph_of: GraphOf) -> None:
    """What deals mini-batches to workers of Azure's own is named with its step."""
    with pytest.raises(PipelineError, match=r"Step 'score' is of type parallel, which deals"):
        graph_of("""
            from azure.ai.ml import Output
            from azure.ai.ml.parallel import RunFunction, parallel_run_function

            score = parallel_run_function(
                name="score", inputs={"data": Input(type="uri_folder")},
                outputs={"scores": Output(type="uri_folder")}, input_data="${{inputs.data}}",
                mini_batch_size="1", instance_count=1,
                task=RunFunction(code=str(HERE / "make"), entry_script="script.py",
                                 environment="azureml:some:1"),
            )

            @dsl.pipeline()
            def p():
                a = make()
                dealt = score(data=a.outputs.out)
        """)


@pytest.mark.parametrize("kind", ["if_else", "do_while"])
def test_conditions_are_refused_by_name(graph_of: GraphOf, kind: str) -> None:
    """A branch and a loop are control flow, which only Azure ML runs."""
    line = {
        "if_else": "condition(condition=True, true_block=a)",
        "do_while": "do_while(body=a, mapping={}, condition=True, max_iteration_count=2)",
    }[kind]
    with pytest.raises(PipelineError, match=r"Step '\w+' is of type \w+, which is control flow"):
        graph_of(f"""
            from azure.ai.ml.dsl._condition import condition
            from azure.ai.ml.dsl._do_while import do_while

            @dsl.pipeline()
            def p():
                a = make()
                choice = {line}
        """)


def test_control_flow_is_refused_by_name(graph_of: GraphOf) -> None:
    """A condition is named with the step that it is."""
    with pytest.raises(
        PipelineError, match=r"Step 'loop' is of type parallel_for, which is control flow"
    ):
        graph_of("""
            from azure.ai.ml.dsl._parallel_for import parallel_for

            @dsl.pipeline()
            def p():
                body = make()
                loop = parallel_for(body=body, items=[{"rows": 1}, {"rows": 2}])
        """)


def test_an_expression_on_an_input_is_refused(graph_of: GraphOf) -> None:
    """What only the service computes is named with the step that needs it."""
    with pytest.raises(PipelineError, match="is an expression on an input"):
        graph_of("""
            @dsl.pipeline()
            def p(n: int = 3):
                a = make(rows=n + 1)
        """)


def test_a_pipeline_without_steps_is_refused(graph_of: GraphOf) -> None:
    """A pipeline that does nothing is a mistake."""
    with pytest.raises(PipelineError, match="no steps"):
        graph_of("""
            @dsl.pipeline()
            def p():
                pass
        """)


def test_a_required_input_that_is_missing_is_named(graph_of: GraphOf) -> None:
    """The message says how to give the input."""
    with pytest.raises(PipelineError, match="raw"):
        graph_of("""
            @dsl.pipeline()
            def p(raw: Input(type="uri_folder")):
                a = make(folder=raw)
        """)


def test_parts_keep_references_apart() -> None:
    """A text around a step's output makes the step needed."""
    from mlflow_perf.pipelines.graph import Step

    step = Step("b", "c", "x", None, values={"t": Parts(("in ", Ref("a", "out")))})
    assert step.needs == ("a",)


def _literal(text: str) -> str:
    import re

    return re.escape(text)
