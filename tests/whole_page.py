"""A web page as tests read it."""

from html.parser import HTMLParser


class WholePage(HTMLParser):
    """Holds that tags nest, and keeps text, tags and what attributes say."""

    VOID = frozenset({"br", "img", "link", "meta"})

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    @property
    def attributes(self) -> list[tuple[str, str | None]]:
        return [pair for _, attributes in self.elements for pair in attributes.items()]

    def of(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of each element with that tag."""
        return [attributes for name, attributes in self.elements if name == tag]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert len(dict(attrs)) == len(attrs), f"<{tag}> has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)
