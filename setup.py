"""Packaging of fleetbert: what it needs, and why each upper bound is there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
# Where this copy is published, e.g. https://github.com/ORGANIZATION/fleetbert. `make release` asks
# for it: an address in the source would be wrong in every fork.
URL = os.environ.get("FLEETBERT_URL", "").rstrip("/")


def read_version() -> str:
    """Return ``__version__``, read as text: importing the package would import Paddle."""
    text = (ROOT / "fleetbert" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__\s*=\s*["\']([^"\']+)["\']', text, re.MULTILINE)
    if match is None:
        raise RuntimeError("fleetbert/__init__.py does not define __version__")
    return match.group(1)


def read_description() -> str:
    """Return README.md, with links that a package index can follow, if it is known where."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if URL:
        text = re.sub(r"(!\[[^]]*\]\()(?!\w+:)", rf"\1{URL}/raw/main/", text)
        text = re.sub(r"(?<!!)(\[[^]]*\]\()(?!\w+:)", rf"\1{URL}/blob/main/", text)
    return text


# What loading a bundle, answering and the client need.
REQUIRES = [
    # 2.6.2 is the last line that has the parameter server; Python 3.13 has wheels of 3.3.1 only.
    # What is between was not tried. fleetbert.compat.versions says the same at run time.
    "paddlepaddle>=2.6.2,<3.4,!=2.7.*,!=3.0.*,!=3.1.*,!=3.2.*,!=3.3.0",
    "setuptools",  # Paddle imports it, and requires it with 3.3.1 and Python 3.12 only
    # Paddle 2.6.2 crashes on import with NumPy 2; none below 2.1 has a wheel for 3.13.
    'numpy>=1.22,<2; python_version < "3.13"',
    'numpy>=2.1,<3; python_version >= "3.13"',
    # 3.20 lacks what DistributedStrategy.a_sync needs (2.6.2), and 5 and later break it.
    'protobuf>=4.21,<5; python_version < "3.13"',
    'protobuf>=5,<7; python_version >= "3.13"',
    "tokenizers>=0.15",
    'tokenizers<0.21; python_version < "3.9"',  # later ones have no wheel for 3.8
    "safetensors>=0.4",
    "pydantic>=2.5",
    "typing-extensions",
    "PyYAML>=6",
    "tqdm",
    "packaging",  # `fleetbert doctor` reads bounds of versions
    "psutil",
    "threadpoolctl>=3",
    "requests",
]

# What each extra adds. fleetbert.core.extras lists the modules by which it is missed.
ARROW = [  # Scorer, and predict of Parquet; 26 wants NumPy 2
    'pyarrow>=8,<26; python_version < "3.13"',
    'pyarrow>=18; python_version >= "3.13"',
    "fsspec",  # addresses; each kind has a package of its own, such as s3fs
]
# `predict --on`, where they run: on every machine of the cluster. Of Python 3.10 and later.
RAY = ["ray[data]>=2.60,<3", *ARROW]
SPARK = ["pyspark>=4.2,<5", "pandas>=2.2", *ARROW]  # and Java 17 or later
TRAIN = [  # also imports, exports, quantizes and distills
    *ARROW,  # the cache of tokens
    "matplotlib>=3.5",  # report.html
    "jinja2>=3",  # report.html, the bundle's card
]
SERVE = [
    "starlette>=0.40",
    "uvicorn>=0.30,<0.55",  # connections.py limits its private HttpToolsProtocol
    "httptools",
    "uvloop",
    "orjson>=3.10",
    "grpcio>=1.60",
    "grpcio-health-checking>=1.60",
    "grpcio-reflection>=1.60",
    "prometheus-client>=0.20",
    "swagger-ui-bundle>=1.1",  # the page at /docs, without a network
]
TRACING = ["opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"]
ONNX = [
    'paddle2onnx>=1.2.11,<2; python_version < "3.13"',  # 2.x wants Paddle 3; none has a wheel there
    'onnx<1.18; python_version < "3.13"',
    'onnx>=1.18; python_version >= "3.13"',
    'onnxruntime<1.24; python_version < "3.13"',
    'onnxruntime; python_version >= "3.13"',
]
# Converts models to Paddle Lite; its wheels stop at Python 3.10.
LITE = ['paddlelite==2.13rc0; python_version < "3.11" and platform_machine == "x86_64"']
TRACKING = [
    "visualdl==2.5.3",
    'crc32c<2.9; python_version < "3.9"',  # of visualdl's; later ones have no wheel for 3.8
]
# `fleetbert tune`. JournalFileBackend came with 4; what comes after 5 was not tried.
TUNE = ["optuna>=4,<6", *TRAIN]
# Tests import models that it quantized and compare its calls with the Paddle classes that
# compression/ takes. Nothing in fleetbert/ imports it.
COMPRESS = ["paddleslim==2.6.0", *TRAIN]
PADDLENLP = [
    "paddlenlp==2.8.1",
    *TRAIN,
    # What it imports without a bound that holds: newer ones want NumPy 2 or lose names that it
    # imports.
    'scipy<1.12; python_version < "3.13"',
    'pandas<2.3; python_version < "3.13"',
    'pyarrow<18; python_version < "3.13"',
    "datasets<3",
    "huggingface_hub<0.25",
    "aistudio-sdk<0.3",
    "setuptools<70",
    "pip",  # environments of uv have none
]

DATA = [f"**/*.{kind}" for kind in ("html", "j2", "css", "js", "json", "proto", "yaml")]

setup(
    name="fleetbert",
    version=read_version(),
    description="Train BERT with PaddlePaddle on one machine or many, compress it and serve it",
    long_description=read_description(),
    long_description_content_type="text/markdown",
    url=URL,
    project_urls={"Changelog": f"{URL}/blob/main/CHANGELOG.md"} if URL else {},
    author="The fleetbert developers",
    license="Apache-2.0",
    keywords="bert paddlepaddle nlp quantization distillation inference serving",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(8, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.8,<3.14",
    # deploy/ stands at the top, beside what it serves, and is installed as fleetbert.deploy.
    packages=[
        *find_packages(include=["fleetbert", "fleetbert.*"]),
        *(f"fleetbert.{name}" for name in find_packages(include=["deploy", "deploy.*"])),
        "fleetbert.recipes",  # data only: fleetbert.config.recipes finds it
    ],
    package_dir={"fleetbert.deploy": "deploy", "fleetbert.recipes": "configs"},
    package_data={
        "fleetbert": [*DATA, "py.typed"],
        "fleetbert.deploy": DATA,
        "fleetbert.recipes": ["**/*.yaml"],
    },
    install_requires=REQUIRES,
    extras_require={
        "train": TRAIN,
        "serve": SERVE,
        "arrow": ARROW,
        "ray": RAY,
        "spark": SPARK,
        "tracing": TRACING,
        "onnx": ONNX,
        "lite": LITE,
        "tracking": TRACKING,
        "tune": TUNE,
        "compress": COMPRESS,
        "paddlenlp": PADDLENLP,
        # What `make venv` has, but for `dev`.
        "all": [*SERVE, *ARROW, *TRACING, *ONNX, *LITE, *TRACKING, *TUNE, *COMPRESS, *PADDLENLP],
        # Both Paddle packages fill the folder `paddle`, and pip always installs paddlepaddle too,
        # and last: a marker `extra != "gpu"` on it changes nothing (pip 23.0, 24.3 and 26.3). So
        # the GPU build must be put on top once more; it takes both commands:
        #   pip install '.[gpu]' && pip install --force-reinstall --no-deps paddlepaddle-gpu==2.6.2
        "gpu": ["paddlepaddle-gpu>=2.6.2,<2.7"],
        "dev": [
            "cmake",  # builds deploy/lite for its tests
            "coverage",  # tests/mutants.py
            "grpcio-tools",
            "hypothesis",
            "import-linter",
            "ipykernel",  # runs docs/examples/*.ipynb, by nbclient
            "mypy",
            "nbclient",
            "pytest>=8",
            "pytest-rerunfailures",
            "pytest-timeout",
            "pytest-xdist",  # three tests at once: many wait for processes
            "ruff",
            "types-PyYAML",
            "types-psutil",
            "types-requests",
            "types-tqdm",
        ],
        # Other engines, to be measured beside Paddle; best in an environment of their own.
        "bench": ["torch", "transformers"],
    },
    entry_points={"console_scripts": ["fleetbert=fleetbert.cli.main:main"]},
)
