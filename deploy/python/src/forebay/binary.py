"""Where the binary is. Does not run it."""

from __future__ import annotations

import os
import shutil
import site
import sys
import sysconfig
from pathlib import Path
from typing import Iterator, Optional, Union

from .errors import RouterStartupFailed

_NAME = "forebay"


def find_binary(given: Optional[Union[str, "os.PathLike[str]"]] = None) -> str:
    """The path of the binary: `given`, $FOREBAY_BINARY, the one that was installed with this package, or $PATH's.

    Raises `RouterStartupFailed("binary_missing")`; what was asked for by name is not replaced by another one.
    """
    for source, named in (("binary", given), ("FOREBAY_BINARY", os.environ.get("FOREBAY_BINARY"))):
        if named:
            if os.path.isfile(named):
                return os.path.abspath(named)
            raise RouterStartupFailed("binary_missing", f"{source}: {os.fspath(named)} does not exist")
    found = next((path for path in _installed() if path.is_file()), None) or shutil.which(_NAME)
    if found is None:
        raise RouterStartupFailed("binary_missing", f"{_NAME} is neither installed with this package nor in $PATH")
    return str(found)


def _installed() -> Iterator[Path]:
    yield Path(sysconfig.get_path("scripts")) / _NAME
    yield Path(sys.executable).parent / _NAME
    # Installed for one user, or with `--target DIR`, which makes DIR/bin.
    yield Path(site.getuserbase()) / "bin" / _NAME
    yield Path(__file__).resolve().parents[1] / "bin" / _NAME
