"""Options that take several words: `--metric bleu chrf` means `--metric bleu --metric chrf`."""

from collections.abc import Callable, Sequence
from typing import Any

import click


class SeveralWords(click.Command):
    """A command some of whose options take all the words up to the next option.

    Where such an option stands before the command's own arguments, its first word is its own, and a further one only
    if it is `known`: in `--metric bleu runs/mine` the last word is the model.
    """

    def __init__(self, *args: Any, several: Sequence[str], known: Callable[[str], bool], **options: Any) -> None:
        super().__init__(*args, **options)
        self._several, self._known = several, known

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spelled: list[str] = []
        option: str | None = None
        begun = bool(args) and not args[0].startswith("-")
        for place, word in enumerate(args):
            if word == "--":
                spelled += args[place:]
                break
            if word.startswith("-"):
                option = word if word in self._several else None
            elif option and args[place - 1] != option:
                if begun or self._known(word):
                    spelled.append(option)
                else:
                    option = None
            spelled.append(word)
        return super().parse_args(ctx, spelled)
