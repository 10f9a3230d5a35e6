"""Built-in synthetic tasks on strings of letters: copy, reverse, sort."""

import random
from collections.abc import Callable

from regard.data.settings import SequencesData

LETTERS = "abcdefghijklmnopqrstuvwxyz"

TASKS: dict[str, Callable[[str], str]] = {
    "copy": lambda text: text,
    "reverse": lambda text: text[::-1],
    "sort": lambda text: "".join(sorted(text)),
}


def sample(settings: SequencesData) -> dict[str, list[tuple[str, str]]]:
    """Sample distinct pairs for each split. No string is in two splits."""
    generator = random.Random(f"{settings.task} {settings.seed}")
    compute_target = TASKS[settings.task]
    seen: set[str] = set()
    splits = {}
    for name in ("test", "dev", "train"):
        pairs: list[tuple[str, str]] = []
        while len(pairs) < getattr(settings, name):
            length = generator.randint(settings.shortest, settings.longest)
            text = "".join(generator.choice(LETTERS[: settings.letters]) for _ in range(length))
            if text not in seen:
                seen.add(text)
                pairs.append((text, compute_target(text)))
        splits[name] = pairs
    return splits
