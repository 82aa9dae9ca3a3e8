"""The command line: ``latent-tts`` and ``python -m latent_tts``.

This is the same program as the Rust binary, run from the extension module.
"""

from __future__ import annotations

import signal
import sys

from . import _core


def main() -> int:
    """Runs the command line of this process and returns its exit code."""
    # Python's handler only sets a flag for the interpreter, which does not run during the command.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.run_command_line(["latent-tts", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
