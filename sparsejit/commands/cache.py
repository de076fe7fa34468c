"""`sparsejit cache`: the kept code of compiled models, and its size."""

from typing import Annotated

import typer

from sparsejit.commands.console import JsonOption, hand_over, say


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all entries.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the folder and the size of the code cache, or clear it."""
    from sparsejit.api.models import code_cache

    removed = code_cache.clear() if clear else 0
    use = code_cache.use()
    if hand_over({**use._asdict(), "removed": removed}, as_json, None):
        return
    if clear:
        say(f"removed {removed} entries")
    size, most = use.bytes / 2**20, use.most_bytes >> 20
    say(f"{use.folder}: {use.entries} entries, {size:.1f} of at most {most} MB")
