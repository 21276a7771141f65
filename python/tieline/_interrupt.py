"""Calls of the library that wait without an event for Python: Ctrl-C ends the wait in the main thread."""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional


def is_main() -> bool:
    """Whether this is the thread in which Python runs signal handlers."""
    return threading.current_thread() is threading.main_thread()


class Call:
    """A call that runs in a thread of its own. After an interruption it ends in the background."""

    def __init__(self, function: Callable, *arguments: Any, wake: Optional[Callable] = None) -> None:
        self._result: Any = None
        self._error: Optional[BaseException] = None
        self._over = threading.Event()
        self._call, self._wake = (function, arguments), wake
        threading.Thread(target=self._run, name="tieline", daemon=True).start()

    def _run(self) -> None:
        function, arguments = self._call
        try:
            self._result = function(*arguments)
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()
            if self._wake is not None:
                self._wake()

    def is_over(self) -> bool:
        return self._over.is_set()

    def result(self) -> Any:
        """Waits for the end; a signal handler may raise an exception meanwhile."""
        while not self._over.wait(0.05):
            pass
        if self._error is not None:
            raise self._error
        return self._result


def interruptibly(function: Callable, *arguments: Any) -> Any:
    """Calls a function so that Ctrl-C ends the wait for it."""
    return Call(function, *arguments).result() if is_main() else function(*arguments)
