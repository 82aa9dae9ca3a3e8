"""Writes the files of tests/data that torch.save made, and one that tries to run a command.

    pip install torch==2.5.1
    python pickles.py
"""

import argparse
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from pathlib import Path

import torch

HERE = Path(__file__).parent


def tensors():
    """Tied, transposed and sliced views, and every dtype that weights have."""
    table = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return OrderedDict(
        {
            "table": table,
            "tied": table,
            "transposed": table.T,
            "row": table[1],
            "bf16": torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
            "f16": torch.tensor([0.5], dtype=torch.float16),
            "f64": torch.tensor([0.25], dtype=torch.float64),
            "scalar": torch.tensor(3.0),
            "parameter": torch.nn.Parameter(torch.tensor([7.0])),
            "empty": torch.zeros(0, 4),
        }
    )


class Command:
    """Runs a command where a pickle is executed."""

    def __reduce__(self):
        return (__import__("os").system, ("touch /tmp/a-pickle-was-executed",))


def hostile(path):
    """A state dictionary whose pickle calls os.system first."""
    saved = HERE / "saved.pt"
    with zipfile.ZipFile(saved) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            if name.endswith("data.pkl"):
                command = pickletools.optimize(pickle.dumps(Command(), protocol=2))
                # The command's result is dropped before the dictionary is made.
                content = b"\x80\x02" + command[2:-1] + b"0" + content[2:]
            archive.writestr(name, content)


def main():
    torch.save(tensors(), HERE / "saved.pt")
    lightning = {
        "epoch": 3,
        "hyper_parameters": argparse.Namespace(lr=1e-4, path=Path("x")),
        "state_dict": {"llm.weight": torch.ones(2, 2), "count": 5},
    }
    torch.save(lightning, HERE / "lightning.ckpt")
    hostile(HERE / "hostile.pt")


if __name__ == "__main__":
    main()
