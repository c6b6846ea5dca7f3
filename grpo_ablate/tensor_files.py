"""What safetensors cannot write, said as other writers say it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError


@contextmanager
def os_errors() -> Iterator[None]:
    """Raise OSError, with the system's number and words, where safetensors meets a full disk or no folder."""
    try:
        yield
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number)) from None
