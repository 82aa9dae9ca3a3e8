"""Shared fixtures: the embedded reasoner, and the command line for comparisons."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import latent_tts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def reasoner() -> latent_tts.Reasoner:
    return latent_tts.Reasoner.from_pretrained("embedded", device="cpu")


@pytest.fixture(scope="session")
def questions() -> list[latent_tts.Question]:
    return latent_tts.read_questions("embedded:test", limit=4)


@pytest.fixture(scope="session")
def command() -> Callable[..., None]:
    """Runs `latent-tts` from LATENT_TTS_BIN, or from a build of this checkout."""
    builds = [ROOT / "target" / profile / "latent-tts" for profile in ("release", "debug")]
    named = os.environ.get("LATENT_TTS_BIN")
    found = [Path(named)] if named else [build for build in builds if build.exists()]
    if not found:
        pytest.skip("no latent-tts to compare with; `cargo build`, or set LATENT_TTS_BIN")

    def run(*arguments: object) -> None:
        line = [str(found[0]), *map(str, arguments), "--quiet"]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)

    return run


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with random weights as a GGUF file."""
    example = ROOT / "target" / "debug" / "examples" / "random_gguf"
    if not example.exists():
        pytest.skip(
            "no random_gguf; `cargo build -p latent-tts-model --features testkit "
            "--example random_gguf`"
        )
    out = tmp_path_factory.mktemp("gguf")
    subprocess.run([str(example), str(out)], check=True, stdout=subprocess.DEVNULL)
    return sorted(out.glob("llama-*.gguf"))[0]


def files(path: Path) -> dict[str, bytes]:
    """The contents of the files of a directory."""
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
