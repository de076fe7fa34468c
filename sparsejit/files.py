"""Files that appear whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparsejit.errors import InvalidInput


@contextmanager
def atomic_path(destination: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `destination`, renamed onto it if the block succeeds.

    The parent directory is created. If the block raises, the temporary file is removed
    and `destination` keeps whatever it held before.
    """
    final = Path(destination)
    final.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=final.parent, prefix=f".{final.stem}.", suffix=final.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(final)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def check_writable(destination: str | os.PathLike[str]) -> Path:
    """Return `destination` as a Path if `atomic_path` can write there; leaves nothing behind.

    For before the work whose result goes there. Raises InvalidInput, with the path and the remedy,
    where it is a directory or a device, or where its folder cannot be made or written to.
    """
    path = Path(destination)
    try:
        if path.is_dir():
            raise InvalidInput(f"{path} is a directory; name a file in it")
        if path.exists() and not path.is_file():
            raise InvalidInput(f"{path} is not a regular file; name another")
        # The folders that are missing are made later; a file in the nearest one stands for them.
        nearest = next(folder for folder in path.absolute().parents if folder.exists())
        if not nearest.is_dir():
            raise InvalidInput(f"{nearest} is a file, not a folder; {path} cannot be in it")
        with tempfile.NamedTemporaryFile(dir=nearest, prefix=f".{path.stem}.", suffix=path.suffix):
            return path
    except OSError as error:
        reason = error.strerror or error
        raise InvalidInput(f"cannot write {path} ({reason}); name another place") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
