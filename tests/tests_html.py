"""Read HTML as a browser would, and check that it is well-formed."""

from html.parser import HTMLParser

VOID = {"br", "img", "input", "link", "meta", "hr"}


class Page(HTMLParser):
    """The tags of a page, its text without scripts and styles, its ids, and the addresses that it refers to.

    Every tag must be closed in order.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._read_tag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._read_tag(tag, attrs)

    def _read_tag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"href", "src", "xlink:href"}]
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        if data.strip() and self._open[-1:] not in (["script"], ["style"]):
            self.texts.append(data.strip())
