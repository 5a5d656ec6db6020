"""The cheapest machine of a user's own table."""

from __future__ import annotations

from functools import partial
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


def test_the_memory_of_each_gpu_must_be_enough(tmp_path: Path) -> None:
    """A cheaper machine whose GPU is too small is passed over; a machine without GPUs has none."""
    table = (
        "name,cpus,memory_gb,price,gpus,gpu_memory_gb\n"
        "t4,4,28,0.5,1,16\na100,24,220,3.7,1,80 GB\ncpu,4,28,0.2,,\n"
    )
    machines = read_machines(_write(tmp_path, table))
    assert [m.gpu_memory_mb for m in machines[:2]] == [16384.0, 81920.0]
    choose = partial(choose_machine, machines=machines)
    small = choose(RightSize(1, 1024, 1, 1, gpu_memory_mb=12_000))
    assert small.reason.startswith(
        "t4: the cheapest of 2 that have 1 CPU, 1 GiB, 1 GPU with 11.7 GiB to spare;"
    )
    assert choose(RightSize(1, 1024, 1, 1, gpu_memory_mb=20_000)).machine == machines[1]
    assert choose(RightSize(1, 1024, 1, 1, gpu_memory_mb=90_000)).machine is None
    assert choose(RightSize(1, 1024, 1, 0)).machine == machines[2]
    unknown = choose(RightSize(1, 1024, 1, 1))
    assert "though it is unknown how much GPU memory the job needs;" in unknown.reason


def test_a_table_without_the_memory_of_gpus_is_not_filtered_by_it(tmp_path: Path) -> None:
    """The choice says that the table does not know."""
    machines = read_machines(_write(tmp_path, TABLE))
    choice = choose_machine(RightSize(1, 1024, 1, 1, gpu_memory_mb=20_000), machines)
    assert choice.machine is not None
    assert choice.machine.name == "fast"
    assert "though the table does not say how much memory its GPUs have;" in choice.reason
    none = choose_machine(RightSize(1, 1024, 1, 0), machines)
    assert "GPU" not in none.reason


@pytest.mark.parametrize(
    ("column", "cell", "memory_mb"),
    [
        ("VRAM (GB)", "80", 81920.0),
        ("gpu_memory_mb", "16384", 16384.0),
        ("GPU RAM", "40g", 40960.0),
    ],
)
def test_the_memory_of_gpus_has_other_usual_names(
    tmp_path: Path, column: str, cell: str, memory_mb: float
) -> None:
    """It has the units of the machine's memory."""
    table = f"name,cpus,memory,price,gpus,{column}\na,4,28,1,1,{cell}\n"
    assert read_machines(_write(tmp_path, table))[0].gpu_memory_mb == memory_mb


def test_columns_may_have_other_usual_names_and_units(tmp_path: Path) -> None:
    """Semicolons, MB, units in the cells, a currency sign, and case do not matter."""
    text = "Instance Type;vCPUs;RAM (MB);Price USD\nm1;4;16384;$0.19\n"
    (machine,) = read_machines(_write(tmp_path, text))
    assert (machine.cpus, machine.memory_mb, machine.price) == (4.0, 16384.0, 0.19)
    text = "name\tcpus\tmemory\tprice\nm1\t4\t16 GiB\t0.19\n"
    (machine,) = read_machines(_write(tmp_path, text))
    assert machine.memory_mb == 16384.0


@pytest.mark.parametrize(
    ("cell", "memory_mb"),
    [
        ("16", 16384.0), ("16 GB", 16384.0), ("16g", 16384.0), ("512 MB", 512.0), ("512MiB", 512.0),
        ("1 TB", 1048576.0), ("0.5 TiB", 524288.0), ("4096 KB", 4.0), ("3221225472 B", 3072.0),
        ("1e3 MB", 1000.0),
    ],
)  # fmt: skip
def test_memory_has_the_unit_of_its_cell(tmp_path: Path, cell: str, memory_mb: float) -> None:
    """A factor is one of 1024, with `B` and `iB` alike; without a unit it is GiB."""
    table = f"name,cpus,memory,price\na,4 vCPUs,{cell},1\n"
    assert read_machines(_write(tmp_path, table))[0].memory_mb == memory_mb


@pytest.mark.parametrize(
    ("cell", "price"),
    [
        ("$0.19", 0.19), ("0.19 USD", 0.19), ("USD 0.19", 0.19), ("€ 0.19", 0.19),
        ("US$0.19", 0.19), ("$0.19 per hour", 0.19), ("0.19 EUR/h", 0.19), ("0.19 hourly", 0.19),
        ("1e-2", 0.01), ("0", 0.0),
    ],
)  # fmt: skip
def test_a_price_is_that_of_an_hour(tmp_path: Path, cell: str, price: float) -> None:
    """A currency and the word hour say nothing else; a machine of one's own may cost nothing."""
    (machine,) = read_machines(_write(tmp_path, f"name,cpus,memory,price\na,4,8,{cell}\n"))
    assert machine.price == price


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
        ("name,cpus,memory,price\na,1,2,$70.08 monthly\n", "'.70.08 monthly', .* price of an"),
        ("name,cpus,memory,price\na,1,2,3 cents\n", "price is '3 cents', but must be the price of"),
        ("name,cpus,memory,price\na,1,2,monthly 70\n", "price is 'monthly 70'"),
        ("name,cpus,memory,price\na,1,2,0.3/month\n", "price is '0.3/month'"),
        ("name,cpus,memory,price\na,1,2,-1\n", "price is '-1'.* 0 or more"),
        ("name,cpus,memory,price\na,1,3 Gbit,1\n", "memory is '3 Gbit', .* the unit B, KB"),
        ("name,cpus,memory,price\na,1,3 iB,1\n", "memory is .3 iB."),
        ("name,cpus,memory,price\na,1,0,1\n", "memory is '0', but must be a number above zero"),
        ("name,cpus,memory,price\na,4 k,2,3\n", "line 2: cpus is '4 k'"),
        ("name,cpus,memory,price,gpus\na,4,2,3,-1\n", "line 2: gpus is '-1', but .* 0 or more"),
        ("name,cpus,memory,price,vram\na,4,2,3,x\n", "line 2: vram is 'x', but .* the unit B"),
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
