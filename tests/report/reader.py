"""A page read by Python's HTML parser: its elements in order, each with what it stands in and its text."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parents: tuple[Element, ...]
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join("".join(self.parts).split())

    def inside(self, **attributes: str) -> bool:
        """Whether it is in an element with these attributes."""
        return any(attributes.items() <= one.attributes.items() for one in self.parents)


class Reader(HTMLParser):
    """Raises AssertionError where elements are not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self.open: list[Element] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {key: value or "" for key, value in attrs}, tuple(self.open))
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {key: value or "" for key, value in attrs}, tuple(self.open)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop().tag == tag, tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.parts.append(data)

    def all(self, tag: str, **inside: str) -> list[Element]:
        return [one for one in self.elements if one.tag == tag and (not inside or one.inside(**inside))]

    def section(self, name: str) -> Element:
        (found,) = [one for one in self.elements if one.attributes.get("id") == name]
        return found

    def rows(self, section: str) -> list[list[str]]:
        """The text of the cells of the rows in a section."""
        rows = self.all("tr", id=section)
        cells = [one for one in self.elements if one.tag in ("td", "th") and one.inside(id=section)]
        return [[cell.text for cell in cells if row in cell.parents] for row in rows]
