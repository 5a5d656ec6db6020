"""The cheapest machine of a user's own table."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_perf.analysis.machines import choose_machine, read_machines
from mlflow_perf.analysis.rightsize import RightSize
from mlflow_perf.errors import SettingError

TABLE = """\
name,cpus,memory_gb,price_per_hour,gpus
big,16,64,0.80,
small,2,4,0.05,
odd,4,32,0.20,
fast,4,32,2.00,1
"""


def _write(folder: Path, text: str) -> Path:
    path = folder / "machines.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("size", "name", "price"),
    [
        (RightSize(2, 2048, 1, 0), "small", 0.05),
        (RightSize(2, 4000, 1, 0), "odd", 0.20),
        (RightSize(2, 4000, 3, 0), "odd", 0.60),
        (RightSize(1, 1024, 1, 1), "fast", 2.00),
        (RightSize(8, 1024, 1, 0), "big", 0.80),
        (RightSize(None, None, 1, 0), "small", 0.05),
        (RightSize(64, 1024, 1, 0), None, None),
    ],
)
def test_the_cheapest_that_fits_is_chosen(
    tmp_path: Path, size: RightSize, name: str | None, price: float | None
) -> None:
    """A tenth of a machine's memory is the system's; the price is that of all nodes."""
    choice = choose_machine(size, read_machines(_write(tmp_path, TABLE))).as_dict()
    assert choice["machine"] == name
    assert choice["price_per_hour"] == (None if price is None else pytest.approx(price))


def test_columns_may_have_other_usual_names_and_units(tmp_path: Path) -> None:
    """Semicolons, MB, units in the cells, a currency sign, and case do not matter."""
    text = "Instance Type;vCPUs;RAM (MB);Price USD\nm1;4;16384;$0.19\n"
    (machine,) = read_machines(_write(tmp_path, text))
    assert (machine.cpus, machine.memory_mb, machine.price) == (4.0, 16384.0, 0.19)
    text = "name\tcpus\tmemory\tprice\nm1\t4\t16 GiB\t0.19\n"
    (machine,) = read_machines(_write(tmp_path, text))
    assert machine.memory_mb == 16384.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,cpus,memory_gb\na,1,2\n", "no column with the price.*call it price_per_hour.*name"),
        ("cpus,memory_gb,price\n1,2,3\n", "no column with the name"),
        ("name,cpus,memory_gb,price\na,1,2,3\nb,1,x,3\n", "line 3: memory_gb is 'x'"),
        ("name,cpus,memory_gb,price\na,-1,2,3\n", "line 2: cpus is '-1'"),
        ("name,cpus,memory_gb,price\na,nan,2,3\n", "line 2: cpus is 'nan'"),
        ("name,cpus,memory_gb,price\na,1,2\n", "line 2: price is ''"),
        ("name,cpus,memory_gb,price\na,.,2,3\n", "line 2: cpus is '.'"),
        ("name,cpus,memory_gb,price\n,1,2,3\n", "line 2: the machine has no name"),
        ("name,cpus,memory_gb,price\n", "names no machine"),
        ("", "no column"),
    ],
)
def test_a_bad_table_is_refused_by_column_and_line(tmp_path: Path, text: str, message: str) -> None:
    """The message names what is missing or wrong, and where."""
    with pytest.raises(SettingError, match=message):
        read_machines(_write(tmp_path, text))


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    """It says which file."""
    with pytest.raises(SettingError, match=r"nowhere\.csv cannot be read: No such file"):
        read_machines(tmp_path / "nowhere.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="no text in UTF-8"):
        read_machines(tmp_path / "binary.csv")
