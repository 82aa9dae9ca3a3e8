"""The command line: ``latent-tts`` and ``python -m latent_tts``.

The same program as the Rust binary, from the extension module of the wheel.
"""

from __future__ import annotations

import signal
import sys

from . import _core


def main() -> int:
    """Runs the command line of this process; returns its exit code."""
    # Python's handler only notes a Ctrl-C for the interpreter, which does not run meanwhile.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.run_command_line(["latent-tts", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
