"""What is mounted where."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_perf.core.mounts import is_remote, list_mounts

_ROWS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:40 / /nfs/my\\040home rw,relatime shared:2 master:3 - nfs4 server:/home rw,vers=4.2
24 22 0:41 / /scratch rw - lustre 10.0.0.1@tcp:/scratch rw,flock
25 24 0:42 / /scratch/local rw - xfs /dev/vdb rw
26 22 0:43 / /mnt/disk rw - fuseblk /dev/sdb1 rw
27 22 0:44 / /mnt/ssh rw - fuse.sshfs me@host: rw
28 22 0:45 / /over rw - nfs server:/over rw
29 22 0:46 / /over rw - tmpfs tmpfs rw
"""


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """Return a list as the kernel's."""
    file = tmp_path / "mountinfo"
    file.write_text(_ROWS)
    return file


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("/var/lib", False),
        ("/nfs", False),
        ("/nfs/my home", True),
        ("/nfs/my home/me/.local/state", True),
        ("/nfs/my homes", False),
        ("/scratch/me", True),
        ("/scratch/local/me", False),
        ("/mnt/disk/a", False),
        ("/mnt/ssh/a", True),
        ("/over/a", False),
    ],
)
def test_a_network_file_system_is_told_from_a_disk(
    folder: str, expected: bool, listed: Path
) -> None:
    assert is_remote(Path(folder), listed) == expected


def test_a_link_is_where_it_leads(listed: Path, tmp_path: Path) -> None:
    (tmp_path / "home").symlink_to("/nfs/my home/me")
    assert is_remote(tmp_path / "home" / "state", listed)


def test_this_machines_mounts_are_listed(tmp_path: Path) -> None:
    assert Path("/proc") in {mount.place for mount in list_mounts()}
    assert all(mount.kind for mount in list_mounts())
    assert list_mounts(tmp_path / "none") == []
    assert not is_remote(tmp_path, tmp_path / "none")
