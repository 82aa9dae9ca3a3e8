"""Executes the notebook and writes its outputs; with --check, only verifies that every cell runs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).with_name("latent_tts.ipynb")


def main() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # Cells write run directories into their working directory.
    with tempfile.TemporaryDirectory() as scratch:
        client = NotebookClient(
            notebook, timeout=300, resources={"metadata": {"path": scratch}}
        )
        client.execute()
    if "--check" not in sys.argv:
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
