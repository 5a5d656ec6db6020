"""Work Queue's log taken apart by arrays, against a regular expression on each line."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_perf.spans.importers.workqueue_lines import take_apart

_LINE = re.compile(
    rb"(\d{1,18}) \d{1,18} (?:TASK (\d{1,18}) (\S{1,64})|TRANSFER (\S{1,64}) (\d{1,18}))(?= |$)"
)
_ADDRESS = re.compile(rb" (\S{1,64})(?=\s|$)")
_words = st.sampled_from(
    ["TASK", "TRANSFER", "WORKER", "INPUT", "OUTPUT", "RUNNING", "DONE", "WAITING", "1", "25", "-3",
     "WAITING_RETRIEVAL", "1795196931445073", "9" * 18, "9" * 19, "x" * 64, "x" * 65,
     "ä", "", "\t", "#"]
)  # fmt: skip
_shaped = st.builds(
    "{} {} TASK {} {} {}".format,
    st.integers(0, 10**16), st.integers(0, 9), st.integers(0, 10**6), _words, _words,
)  # fmt: skip
_moved = st.builds(
    "{} 7 TRANSFER {} {} {}".format, st.integers(0, 10**16), _words, st.integers(0, 99), _words
)
_lines = st.lists(
    st.one_of(_shaped, _moved, st.lists(_words, max_size=7).map(" ".join)), max_size=12
)


@settings(max_examples=80)
@given(_lines)
def test_each_line_is_what_the_expression_says(texts: list[str]) -> None:
    """A line is of a task, of a transfer, or another; none is lost and none is made up."""
    lines = [text.encode() for text in texts]
    found = take_apart(b"".join(line + b"\n" for line in lines))
    expected, others, running = [], [], []
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            others.append(line)
            continue
        time, task, state, moved, of = match.groups()
        event = state or b"TRANSFER_" + moved
        expected.append((int(time), int(task or of), event))
        if state == b"RUNNING":
            address = _ADDRESS.match(line, match.end())
            running.append((int(task), address[1] if address else b""))
    events = [found.words[n] for n in found.event.tolist()]
    rows = zip(found.time.tolist(), found.task.tolist(), events, strict=True)
    assert list(rows) == expected
    places = [found.addresses[n] for n in found.address.tolist()]
    assert list(zip(found.started.tolist(), places, strict=True)) == running
    assert found.others == others
