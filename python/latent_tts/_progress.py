"""Progress bars, where tqdm is installed, and log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any

logger = logging.getLogger("latent_tts")


class Progress:
    """Hands progress of the extension module on to a tqdm bar and to the log."""

    def __init__(self, shown: bool, total: int | None = None, what: str = "questions") -> None:
        self._what = what
        self._bar: Any = None
        self._tqdm: Callable[..., Any] | None = None
        if shown:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                pass
            else:
                self._tqdm = tqdm
        if total is not None:
            self.start(0, total)

    def start(self, done: int, total: int) -> None:
        """Shows the bar, with what is done already."""
        if self._tqdm is not None:
            self._bar = self._tqdm(total=total, initial=done, unit=" " + self._what)

    def __call__(self, opened: tuple[str, int, int] | None, done: int) -> None:
        if opened is not None:
            path, before, total = opened
            logger.info("writing %s: %d of %d %s are on file", path, before, total, self._what)
            self.start(before, total)
        if self._bar is not None and done:
            self._bar.update(done)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
