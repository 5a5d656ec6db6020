"""Packaging of mlflow-perf: the package lives in ``src/common/mlflow_perf``."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

HERE = Path(__file__).parent
SOURCE = "src/common"
VERSION = re.search(
    r'^__version__ = "(.+)"$',
    (HERE / SOURCE / "mlflow_perf" / "_version.py").read_text(encoding="utf-8"),
    re.MULTILINE,
)
assert VERSION is not None, "src/common/mlflow_perf/_version.py holds no __version__"

# azure-ai-ml before 1.27 allows marshmallow 4, with which it cannot be imported.
PIPELINES = ["azure-ai-ml>=1.27", "parsl[monitoring]>=2024.7", "pathspec>=0.12"]
SPANS = ["numpy>=1.24", "matplotlib>=3.7", "pyarrow>=12"]
PROXYSTORE = ["proxystore>=0.8"]
PROMETHEUS = ["prometheus-client>=0.20"]
OPENTELEMETRY = ["opentelemetry-sdk>=1.20"]
CARBON = ["codecarbon>=3.0"]
# The peers that `make bench` measures beside ours.
BENCH = [*CARBON, "resource-tracker>=0.5"]
GPU = ["nvidia-ml-py>=12.535"]
# What the components of the demo pipeline import in their own scripts.
DEMO = [*PIPELINES, *SPANS, "lightgbm>=4.0", "numpy>=1.24", "pandas>=2.0", "pyarrow>=12"]
TEST = [
    "hypothesis>=6.100",
    "pytest>=8.0",
    "pytest-cov>=5.0",
    "pytest-randomly>=3.15",
    "pytest-rerunfailures>=14.0",
    "pytest-xdist>=3.5",
    "pytest-timeout>=2.3",
    "mpich>=4.1; sys_platform == 'linux'",
    "mpi4py>=4.0; sys_platform == 'linux'",
    "ddsketch>=3.0",
    "distributed>=2024.1",
    "duckdb>=1.0",
    "flask-wtf>=1.2",
    "ipykernel>=6.20",
    "jsonschema>=4.18",
    "jupyter-client>=8.0",
    "psycopg2-binary>=2.9",
    "pyyaml>=6.0",
    "redis>=5.0",
    "selenium>=4.20",
]
LINT = ["mypy>=1.11", "ruff>=0.6", "pandas-stubs", "types-psutil", "types-PyYAML", "types-requests"]
DOCS = ["mkdocs-material>=9.5", "mkdocstrings[python]>=0.25"]
BUILD = ["build>=1.2", "twine>=5.0"]

setup(
    name="mlflow-perf",
    version=VERSION.group(1),
    description="Workflow performance reporting in MLflow: what each step used, wasted and waited for.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",
    package_dir={"": SOURCE},
    # The folders of templates are packages too, to setuptools; so their files are packed.
    packages=find_namespace_packages(SOURCE, include=["mlflow_perf", "mlflow_perf.*"]),
    package_data={
        "mlflow_perf": ["py.typed", "**/*.html", "**/*.css", "**/*.js", "**/*.sql", "**/*.txt"]
    },
    include_package_data=True,
    zip_safe=False,
    install_requires=[
        "click>=8.2",
        "jinja2>=3.1.2",
        "mlflow>=3.1",
        "numpy>=1.24",
        "psutil>=5.9.4",
    ],
    extras_require={
        "pipelines": PIPELINES,
        # azureml-mlflow caps mlflow-skinny at 3.15.0, and a newer mlflow needs its own skinny.
        "azureml": [
            *PIPELINES,
            "azureml-mlflow>=1.60",
            "azure-identity>=1.16",
            "mlflow>=3.1,<=3.15.0",
        ],
        "gpu": GPU,
        "carbon": CARBON,
        "bench": BENCH,
        "amd": ["amdsmi>=6.0"],
        "nixl": ["nixl>=1.0"],
        "spans": SPANS,
        "proxystore": PROXYSTORE,
        "prometheus": PROMETHEUS,
        "opentelemetry": OPENTELEMETRY,
        "demo": DEMO,
        "test": TEST,
        "lint": LINT,
        "docs": DOCS,
        "dev": sorted(
            {*DEMO, *TEST, *LINT, *DOCS, *BUILD, *PROXYSTORE, *PROMETHEUS, *OPENTELEMETRY, *GPU}
        ),
    },
    entry_points={
        "console_scripts": ["mlflow-perf = mlflow_perf.cli:main"],
        "mlflow.run_context_provider": ["mlflow-perf = mlflow_perf.plugin:NodeRunContext"],
        "mlflow.app": [
            "mlflow-perf = mlflow_perf.web:create_app",
            "mlflow-perf-basic-auth = mlflow_perf.web:create_app_with_basic_auth",
        ],
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: System :: Monitoring",
        "Typing :: Typed",
    ],
)
