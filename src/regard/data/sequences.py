"""Built-in tasks on strings of letters, whose right answers are known: copy them, reverse them, sort them."""

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
    """Distinct pairs for each split; no string stands in two."""
    generator = random.Random(f"{settings.task} {settings.seed}")
    answer = TASKS[settings.task]
    seen: set[str] = set()
    splits = {}
    for name in ("test", "dev", "train"):
        pairs: list[tuple[str, str]] = []
        while len(pairs) < getattr(settings, name):
            length = generator.randint(settings.shortest, settings.longest)
            text = "".join(generator.choice(LETTERS[: settings.letters]) for _ in range(length))
            if text not in seen:
                seen.add(text)
                pairs.append((text, answer(text)))
        splits[name] = pairs
    return splits
