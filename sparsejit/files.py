"""Files that appear whole or not at all, and a check that a path can be written."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparsejit.errors import DamagedFile, InvalidInput


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` as a Path. Raises InvalidInput for a value that is no path."""
    if not isinstance(path, str | os.PathLike) or isinstance(os.fspath(path), bytes):
        raise InvalidInput(f"the path is a {type(path).__name__}, {path!r}; give a str or a Path")
    return Path(path)


def existing_file(
    path: str | os.PathLike[str], wanted: str = "a file", remedy: str = "check the path"
) -> Path:
    """Return the path of a file that has contents.

    Raises InvalidInput for a folder, where `wanted` is to be given, and where there is no file,
    with the remedy; DamagedFile for an empty file.
    """
    file = checked_path(path)
    try:
        is_folder, is_there = file.is_dir(), file.is_file()
        is_empty = is_there and not file.stat().st_size
    except (OSError, ValueError):  # such as a name that is too long, or has a null byte
        is_folder = is_there = is_empty = False
    if is_folder:
        raise InvalidInput(f"{file} is a folder; give {wanted}")
    if not is_there:
        raise InvalidInput(f"there is no file {file}; {remedy}")
    if is_empty:
        raise DamagedFile(f"{file} is empty; copy it again, or save it again")
    return file


@contextmanager
def atomic_path(destination: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `destination`, renamed onto it if the block succeeds.

    The parent directory is created. If the block raises, the temporary file is removed
    and `destination` keeps whatever it held before.
    """
    final = Path(destination)
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_beside(final)
    try:
        yield temporary
        temporary.replace(final)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def check_writable(destination: str | os.PathLike[str]) -> Path:
    """Return the path if `atomic_path` can write there; for use before work that takes long.

    Creates missing folders and a temporary file, and removes them again. Raises InvalidInput that
    names the path and the obstacle.
    """
    final = checked_path(destination)
    obstacle = _obstacle(final)
    if obstacle is not None:
        raise InvalidInput(
            f"{str(destination)!r} cannot be written: {obstacle}; "
            "name a file in a folder that can be written to"
        )
    return final


def _obstacle(final: Path) -> str | None:
    if "\0" in str(final):
        return "a name has no null bytes"
    missing: list[Path] = []
    try:
        if final.is_dir():
            return "it is a folder"
        # Such as /dev/null, onto which root could rename a file.
        if final.exists() and not final.is_file():
            return "it is no regular file"
        missing = [folder for folder in final.parents if not folder.exists()]
        nearest = next(folder for folder in final.parents if folder not in missing)
        if not nearest.is_dir():
            return f"{nearest} is no folder"
        final.parent.mkdir(parents=True, exist_ok=True)
        _temporary_beside(final).unlink()
    except OSError as error:
        return error.strerror or str(error)
    finally:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
    return None


def _temporary_beside(final: Path) -> Path:
    """Create an empty file beside `final`, with the default permissions of new files."""
    while True:
        name = final.with_name(f".{final.stem}.{secrets.token_hex(4)}{final.suffix}")
        with suppress(FileExistsError):
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            return name
