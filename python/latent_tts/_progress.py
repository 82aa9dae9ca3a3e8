"""Progress bars (if tqdm is installed) and log messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from . import _core

logger = logging.getLogger("latent_tts")


class Progress:
    """Reports progress of the extension module in a tqdm bar and in the log."""

    def __init__(self, shown: bool, total: int | None = None, what: str = "questions") -> None:
        self._what = what
        self._bar: Any = None
        self._file: str | None = None
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
        """Shows the bar, starting at ``done``."""
        if self._tqdm is not None:
            self._bar = self._tqdm(total=total, initial=done, unit=" " + self._what)

    def __call__(self, opened: tuple[str, int, int] | None, done: int) -> None:
        if opened is not None:
            path, before, total = opened
            logger.info("writing %s: %d of %d %s already recorded", path, before, total, self._what)
            self.start(before, total)
        if self._bar is not None and done:
            self._bar.update(done)

    def download(self, file: str, done: int, size: int) -> None:
        """Reports that ``done`` of ``size`` bytes of a file are downloaded."""
        if file != self._file:
            self._file = file
            self.close()
            logger.info("downloading %s: %d of %d bytes present", file, done, size)
            if self._tqdm is not None:
                self._bar = self._tqdm(
                    desc=file, total=size, initial=done, unit="B", unit_scale=True
                )
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Closes the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def fetch(
    models: Sequence[str] = (), *, base: str | None = None, data: str | None = None
) -> None:
    """Downloads models and data named by a Hugging Face Hub id, unless they are in the cache.

    Adapters are added to ``base``; without it, to the model that they record.
    """
    with Progress(True) as bar:
        _core.fetch(models, base, data, bar.download)
