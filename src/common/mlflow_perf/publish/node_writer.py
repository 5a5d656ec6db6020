"""Writes a node's report to MLflow: its figures, its artifacts, and the run's end.

Everything goes through `MlflowClient` and the id of a run: see `tracking.client`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from mlflow_perf.core.held_name import holding
from mlflow_perf.core.json_io import to_json
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.temporary import temporary_folder
from mlflow_perf.core.uris import first_line
from mlflow_perf.errors import NotUploadedError
from mlflow_perf.model.document import NodeDocument, PerfDocument, worst_status
from mlflow_perf.publish.late_run import provide_run
from mlflow_perf.publish.note import REPORT_FILE, renew_note, tag_run, write_run_note
from mlflow_perf.publish.slots import (
    Reports,
    RunReports,
    Slot,
    choose_tags,
    find_left_over,
    find_slot,
    find_unseen_slot,
    is_same_recording,
    merge_reports,
    name_replaced,
    read_repeated,
)
from mlflow_perf.reports import html
from mlflow_perf.reports.speedscope import save_speedscope
from mlflow_perf.tracking.batches import (
    find_limits,
    rank_metrics,
    select_metrics,
    select_run_metrics,
    split_batches,
)
from mlflow_perf.tracking.client import (
    end_run,
    forgetting_artifacts,
    name_steps_experiment,
    note_artifact_place,
    open_client,
)
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.fork_guard import call_inside
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.perf_run import STATUS_TAG, TAG, PerfRun
from mlflow_perf.tracking.recorded_runs import RECORDING_TAG
from mlflow_perf.tracking.run_handle import Claim

if TYPE_CHECKING:
    from mlflow.entities import Run

_UPLOAD_SEC = 3600.0  # the caller has a deadline of its own
_REFUSED_SEC = 2.0  # for an upload to a run whose figures were refused
_SLOW_UPLOAD_SEC = 2.0  # then a run of ours ends before its artifacts are there
_NO_ARTIFACTS = "its figures are in the run, its artifacts are not"
_ALONE_SEC = 10.0
_MAX_LOOKS = 5  # for other nodes that end at the same time
_log = get_logger(__name__)


def write_node(delivery: Delivery, *, claim: Claim | None = None) -> str:
    """Write a node's report and return the id of the run that has it.

    It is safe to repeat this: the same figures and files are written again.

    Args:
        delivery: The report. Its run is created if there is none.
        claim: The permission to create the run; default: a claim that is never withdrawn.

    Raises:
        RunNotFoundError: When the run does not exist (any more).
        TimeoutError: When the claim was withdrawn while the run was created.
        NotUploadedError: When the run has the figures and has ended, but the artifacts are missing.
        Exception: Whatever MLflow raises when the store does not take it.
    """
    run = delivery.run
    if run.run_id is None:
        provide_run(delivery, claim or run.claim())
    delivery.address()
    if run.parent_id is not None and run.experiment_id is not None:
        try:
            uri = run.tracking_uri
            is_there = name_steps_experiment(run.parent_id, run.experiment_id, tracking_uri=uri)
            run.is_apart = not is_there
        # The report counts without it.
        except Exception:  # noqa: BLE001
            _log.debug("The parent run cannot be tagged:", exc_info=True)
    writer, run_id = _NodeWriter(delivery), str(run.run_id)
    try:
        with (
            forgetting_artifacts(run_id),
            # Two that write to a run at the same moment replace each other's report unseen.
            nullcontext()
            if run.own_run or delivery.is_brief
            else holding([run_id], timeout_sec=_ALONE_SEC),
        ):
            latest = writer.write()
    except NotUploadedError:  # perhaps for want of a credential, and so for good
        writer.end_if_own([delivery.document])
        raise
    writer.end_if_own(latest)
    return run_id


@contextmanager
def _as_not_uploaded() -> Iterator[None]:
    try:
        yield
    # Whatever the library of the artifact store raises.
    except Exception as error:
        raise NotUploadedError(f"{_NO_ARTIFACTS}: {first_line(error)}") from error


def _rename(
    folder: str, index: int, report: NodeDocument, files: MutableMapping[str, PerfDocument]
) -> str:
    """Add to files what leaves a report in the run under another name; return its new path.

    Not every store can delete an artifact. A document without nodes can replace it.
    """
    kept = f"{folder}/{name_replaced(index, report)}".lstrip("/")
    files[kept] = PerfDocument({index: report})
    files[f"{folder}/node-{index}.json".lstrip("/")] = PerfDocument()
    return kept


class _NodeWriter:
    """Writes one report to its run, which exists."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery, self._mine = delivery, delivery.document
        self._run_id = str(delivery.run.run_id)
        self._client = open_client(delivery.run.tracking_uri)
        self._before: Run | None = None

    @property
    def _stored(self) -> Run:
        """The run as it was before this report."""
        # Not a cached_property: until Python 3.12 all writers of a process wait for one that hangs.
        if self._before is None:
            self._before = self._client.get_run(self._run_id)
        return self._before

    def write(self) -> list[NodeDocument]:
        """Write the report to its place, and return the reports that say how the run ended."""
        delivery, mine = self._delivery, self._mine
        if delivery.is_brief:
            document = PerfDocument({delivery.index: mine})
            # Before an upload MLflow reads the whole run, which takes longer with our figures.
            try:
                with _as_not_uploaded():
                    self._upload({Slot().path: document})
            finally:
                self._log_figures(document, Slot())
            return [mine]
        present = RunReports(self._client, self._run_id, delivery.artifact_path)
        is_alone = int(mine.node.get("count", 1)) <= 1 and delivery.index == 0
        reports: Reports = {}
        # Each report tags its run. Without that tag there is no other report to look for.
        if not is_alone or STATUS_TAG in self._stored.data.tags:
            try:
                reports = present.look()
            # A store that cannot show its artifacts still takes figures, and maybe artifacts.
            except Exception:  # noqa: BLE001
                _log.debug("The run's artifacts cannot be read:", exc_info=True)
        if reports or not is_alone:
            return self._write_with_others(present, reports)
        slot = find_unseen_slot(mine, self._stored.data.tags)
        self._write_alone(slot)
        if not delivery.run.own_run:
            # Another process may report to the same run at this moment.
            reports = present.look(again=[slot.path])
            if len(merge_reports(reports).all_nodes()) > 1 or not self._is_there(slot, reports):
                return self._write_with_others(present, reports)
        return [mine]

    def _write_alone(self, slot: Slot) -> None:
        """Write the only report that a run shows: figures and artifacts side by side."""
        mine = PerfDocument({self._delivery.index: self._mine})
        # One after the other, each would wait for the way to a distant server and back.
        upload = MlflowCall(
            lambda: self._upload({slot.path: mine}, page_of=mine), name="perf-upload"
        )
        try:
            self._log_figures(mine, slot, known=self._stored.data.metrics)
        except Exception:
            # The process may end next, and would leave the upload's temporary folder behind.
            upload.done_within(_REFUSED_SEC)
            raise
        if not upload.done_or_told(_SLOW_UPLOAD_SEC, f"{_NO_ARTIFACTS} yet"):
            # The job may not wait, and the run would be RUNNING until `recover`.
            self.end_if_own([self._mine])
            upload.done_or_told(_UPLOAD_SEC, f"{_NO_ARTIFACTS} yet")
        with _as_not_uploaded():
            upload.result(0.0)

    def _write_with_others(self, present: RunReports, reports: Reports) -> list[NodeDocument]:
        """Write this report, and the whole run's until no other report has come meanwhile.

        Nodes end at about the same time. Each uploads its own document first, then looks which
        others are there, and looks again after it wrote the whole. So the last look of all sees
        every node, and each process sees whether another one took its place at the same moment.
        """
        mine = self._mine
        seen: Reports | None = None
        path, repeated = "", read_repeated(self._stored.data.tags)
        for _ in range(_MAX_LOOKS):
            slot = find_slot(mine, self._delivery.index, reports, repeated=repeated)
            if slot.path != path or not self._is_there(slot, reports):
                path = slot.path
                left_over = find_left_over(slot, reports, repeated)
                written = self._upload_mine(slot, left_over)
                if slot.is_older:
                    return merge_reports(reports).all_nodes()
                reports = present.look(again=written)
            if reports == seen:
                break
            seen = reports
            document = merge_reports(reports)
            self._log_figures(document, slot, is_repeated=repeated > 0)
            self._upload(page_of=document)
            reports = present.look(again=[path])
        others = (
            node for node in merge_reports(reports).all_nodes() if node.component == mine.component
        )
        return [mine, *(node for node in others if not is_same_recording(node, mine))]

    def _is_there(self, slot: Slot, reports: Reports) -> bool:
        """Return whether the report at a place is this one, perhaps in an earlier state."""
        there = reports.get(slot.folder, {}).get(slot.index)
        return there is not None and is_same_recording(there, self._mine)

    def _upload_mine(self, slot: Slot, left_over: Reports) -> Iterable[str]:
        """Upload this report, and each that it replaces under another name; say so in one line.

        Args:
            slot: Its place.
            left_over: What other components reported before the job was repeated.

        Returns:
            The paths of all that was uploaded.
        """
        delivery, mine = self._delivery, self._mine
        files: dict[str, PerfDocument] = {}
        notes: list[str] = []
        ours = f"report of {mine.component!r} on node"
        if slot.is_older:
            kept = slot.place(name_replaced(slot.index, mine))
            files[kept] = PerfDocument({slot.index: mine})
            at = f"{delivery.artifact_path}/{kept}"
            notes.append(f"has a later {ours} {slot.index}, which stays; this one is kept as {at}")
        else:
            if slot.index != delivery.index:
                mine.node = {**mine.node, "index": slot.index}
                _log.warning(
                    "Two hosts report to the run %s as node %d; %s is node %d there.",
                    self._run_id, delivery.index, mine.node.get("hostname"), slot.index,
                )  # fmt: skip
            for index, older in slot.outdated.items():
                kept = _rename(slot.folder, index, older, files)
                at = f"{delivery.artifact_path}/{kept}"
                notes.append(f"had an earlier {ours} {index}. This one replaces it; it is now {at}")
            for folder, nodes in left_over.items():
                for index, older in nodes.items():
                    _rename(folder, index, older, files)
            files[slot.path] = PerfDocument({slot.index: mine})
        try:
            with _as_not_uploaded():
                self._upload(files)
        except NotUploadedError:
            # Figures of the whole run would be those of this node alone, and replace better ones.
            if not slot.is_older:
                self._log_figures(PerfDocument({slot.index: mine}), slot, with_run=False)
            raise
        for note in notes:  # not before it is so
            _log.warning("The run %s %s.", self._run_id, note)
        return files

    def _log_figures(
        self,
        document: PerfDocument,
        slot: Slot,
        *,
        with_run: bool = True,
        known: Mapping[str, float] | None = None,
        is_repeated: bool = False,
    ) -> None:
        """Log the node's metrics, those of the whole run, the tags and the overview.

        Args:
            document: All nodes that are known.
            slot: The report's place in the run.
            with_run: Whether to log the metrics of the whole run.
            known: The latest metrics of the run. What is the same is not logged again, as by each
                `recover` where artifacts never arrive.
            is_repeated: Whether the tags may have components of an earlier attempt.
        """
        delivery, run = self._delivery, self._delivery.run
        prefix = delivery.metrics_prefix + slot.prefix
        component = document.components.get(slot.component or "", document)
        chosen, of_all = self._mine.summary, component.run_summary if with_run else {}
        if not delivery.all_metrics:
            chosen, of_all = select_metrics(chosen), select_run_metrics(of_all)
        of_node, of_run = (
            [one for one in rank_metrics(*what) if (known or {}).get(one.key) != one.value]
            for what in ((chosen, prefix, slot.index), (of_all, prefix, 0))
        )
        stored = self._stored.data.tags if slot.outdated else {}
        tags = choose_tags(slot, delivery.tags, stored) | tag_run(document)
        if is_repeated:
            tags.setdefault(f"{TAG}components", "[]")  # those of an earlier attempt
        if known is not None and slot.component is not None:  # beside a report without its document
            both = tags, self._stored.data.tags
            tags[STATUS_TAG] = worst_status(one.get(STATUS_TAG, "") for one in both)
        if not delivery.is_brief:
            tags |= renew_note(
                self._stored,
                lambda links: write_run_note(document, links),
                tracking_uri=run.tracking_uri,
                page=run.has_page,
            )
        limits = find_limits(run.tracking_uri)
        for metrics, some_tags in split_batches(of_node, of_run, tags, limits):
            self._client.log_batch(self._run_id, metrics=metrics, tags=some_tags)

    def _upload(
        self,
        documents: Mapping[str, PerfDocument] | None = None,
        *,
        page_of: PerfDocument | None = None,
    ) -> None:
        """Upload artifacts in one call.

        Args:
            documents: Path below the artifact path → what to upload there.
            page_of: What to draw as the run's HTML report.
        """
        with temporary_folder() as root:
            below, documents = root / self._delivery.artifact_path, documents or {}
            for path, document in documents.items():
                place = below / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(to_json(document.as_dict()), encoding="utf-8")
                if place.name.startswith("node-"):
                    save_speedscope(document, place.parent)
            if page_of is not None:
                try:
                    call_inside(html.load_modules)
                    page = html.render(page_of, run=PerfRun.from_mlflow(self._stored))
                    (root / REPORT_FILE).write_text(page, encoding="utf-8")
                except Exception as error:  # noqa: BLE001 - the figures and the JSON count more
                    _log.warning("The HTML report could not be made: %s", first_line(error))
                    _log.debug("Not made:", exc_info=True)
            # A brief report has not asked for it.
            known = self._delivery.run if self._before is None else self._before.info
            note_artifact_place(self._client, self._run_id, known.artifact_uri)
            self._client.log_artifacts(self._run_id, str(root))
            # MLflow skips in silence what is gone, as when the process ends meanwhile.
            if not all((below / path).exists() for path in documents):
                raise FileNotFoundError(f"the files in {root} were removed during the upload")

    def end_if_own(self, nodes: list[NodeDocument]) -> None:
        """End a run of ours at the time when the job ended, which may be long ago.

        The first node's process ends it. Another one whose report comes later ends it again, if it
        failed or ended after that.
        """
        ends = [n.started + n.duration_sec for n in nodes
                if n.started and n.duration_sec is not None]  # fmt: skip
        now = time.time()
        ended = max(ends, default=now)
        # A machine's clock that was set back is before its own start.
        if now > max((n.started for n in nodes if n.started), default=0.0):
            ended = min(now, ended)
        is_ours = self._delivery.run.own_run
        has_failed = self._mine.status not in (None, "FINISHED")
        if not is_ours and (has_failed or len(nodes) > 1):
            run = self._client.get_run(self._run_id)
            is_later = len(nodes) > 1 and 1000 * ended > (run.info.end_time or 0)
            is_over = RECORDING_TAG in run.data.tags and run.info.status != "RUNNING"
            is_ours = is_over and (has_failed or is_later)
        if is_ours:
            status = worst_status(node.status or "" for node in nodes) or "FINISHED"
            end_run(self._client, self._run_id, status, ended=ended)
