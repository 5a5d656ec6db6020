"""Settings: the argument, else the environment, else the default; a wrong one is refused."""

from __future__ import annotations

import inspect

import pytest

from mlflow_perf.core.settings import SETTINGS, Settings, arguments_of, read_setting
from mlflow_perf.errors import SettingError


def test_argument_beats_environment_beats_default() -> None:
    """The nearest to the call wins."""
    assert read_setting("interval", 2, {"MLFLOW_PERF_INTERVAL": "3"}) == 2.0
    assert read_setting("interval", None, {"MLFLOW_PERF_INTERVAL": "3"}) == 3.0
    assert read_setting("interval", None, {"MLFLOW_PERF_INTERVAL": " "}) == 1.0
    assert read_setting("interval", None, {}) == 1.0


def test_every_setting_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row of the table is read from MLFLOW_PERF_ and its name."""
    assert all(row.variable == f"MLFLOW_PERF_{name.upper()}" for name, row in SETTINGS.items())
    monkeypatch.setenv("MLFLOW_PERF_MAX_LENGTH", "50")
    monkeypatch.setenv("MLFLOW_PERF_LIVE", "yes")
    found = Settings.load(max_length=None, interval=2)
    assert (found.max_length, found.live, found.interval) == (50, True, 2.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval", 0), ("interval", 0.01), ("interval", "fast"), ("interval", 4000),
        ("interval", float("nan")), ("interval", True),
        ("max_length", -1), ("max_length", 0), ("max_length", 2.5), ("node", -1), ("node", "x"),
        ("run_id", ""), ("run_id", 7), ("artifact_path", "../x"), ("artifact_path", "."),
        ("artifact_path", "/"), ("artifact_path", "x" * 256),
        ("metrics_prefix", 3), ("live", "maybe"), ("scrape", "ftp://x"), ("scrape", 5),
        ("node_price", -1), ("node_price", float("inf")), ("metrics_prefix", "p" * 101),
        ("artifact_path", "a:b"), ("artifact_path", "a#b"),
        ("artifact_path", "a?b"), ("artifact_path", "%2e%2e/a"), ("artifact_path", "a\n"),
        ("artifact_path", "a\udc80"), ("artifact_path", "a" * 300),
        ("scrape", "http://"), ("scrape", "http://[::1"), ("scrape", "http://h:port/"),
        ("scrape", "http://h:99999/"), ("scrape", "http://a b/"), ("scrape", b"http://h/"),
        ("textfile", "train.txt"), ("textfile", "/no/such/folder/train.prom"),
        ("name", ""), ("exit_timeout", -1), ("exit_timeout", float("inf")),
    ],
)  # fmt: skip
def test_wrong_values_are_refused(name: str, value: object) -> None:
    """A wrong argument is a ValueError that names the setting and the value."""
    with pytest.raises(ValueError, match=name):
        read_setting(name, value, {})


def test_a_wrong_variable_is_named_in_the_message() -> None:
    """The message names the argument or variable with the wrong value."""
    with pytest.raises(SettingError, match="MLFLOW_PERF_INTERVAL is 'abc'; it must be a number"):
        read_setting("interval", None, {"MLFLOW_PERF_INTERVAL": "abc"})


def test_a_path_is_taken_as_mlflow_takes_it() -> None:
    """MLflow refuses a path that is not in its simplest form; nobody has to know that."""
    given = ["/perf/", "./perf", "perf/.", "a//b", "a b/ü"]
    found = [read_setting("artifact_path", path, {}) for path in given]
    assert found == ["perf", "perf", "perf", "a/b", "a b/ü"]


@pytest.mark.parametrize("address", ["ftp://u:hush@h", "http://u:hush@h/m", "http://u:h@hush@h:x/"])
def test_no_message_tells_the_password_of_an_endpoint(address: str) -> None:
    """Addresses of endpoints hold no password, and the message that says so does not either."""
    with pytest.raises(SettingError, match="MLFLOW_PERF_SCRAPE is") as caught:
        read_setting("scrape", None, {"MLFLOW_PERF_SCRAPE": address})
    assert "hush" not in str(caught.value)


def test_addresses_in_one_text_keep_the_patterns_of_their_fragments() -> None:
    """Commas separate addresses, and also the patterns of one address."""
    text = "http://a/metrics#vllm:*,process_*, http://b/metrics,https://c/m#up,"
    found = ("http://a/metrics#vllm:*,process_*", "http://b/metrics", "https://c/m#up,")
    assert read_setting("scrape", None, {"MLFLOW_PERF_SCRAPE": text}) == found
    assert read_setting("scrape", list(found), {}) == found


def test_a_function_takes_the_settings_as_its_arguments() -> None:
    """One field makes an argument, with its default, and an unknown argument is refused."""

    @arguments_of(Settings)
    def start(**given: object) -> dict[str, object]:
        return given

    assert start("train", interval=2.0) == {"name": "train", "interval": 2.0}
    assert list(inspect.signature(start).parameters) == list(SETTINGS)
    with pytest.raises(TypeError, match=r"start\(\) got an unexpected .* 'intervall'"):
        start(intervall=2.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="too many positional"):
        start("train", 2.0)  # type: ignore[call-arg]


def test_the_defaults_are_settings() -> None:
    """Each default passes the validation of its own field, or says that nothing was given."""
    for name, setting in SETTINGS.items():
        if setting.default not in (None, ""):
            assert read_setting(name, setting.default, {}) == setting.default
    assert Settings.load({}) == Settings()
