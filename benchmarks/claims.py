"""What a benchmark claims: figures beside their limits, as a table whose verdict is the exit status.

A claim is a ratio with a limit, or a figure that is only told. In the short form, which CI runs on small models and a
busy machine, a limit is missed only where the ratio falls below 70 % of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.timing import machine

SLACK = 0.7


@dataclass(frozen=True)
class Claim:
    """value is to be at least `least`, or at most `most`; neither: it is told only."""

    name: str
    value: float
    least: float | None = None
    most: float | None = None

    def holds(self, slack: float) -> bool:
        enough = self.least is None or self.value >= self.least * slack
        return enough and (self.most is None or self.value <= self.most / slack)

    def text(self, slack: float) -> str:
        wanted = f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}" if self.most else ""
        return f"{self.name:74}{self.value:12.3g}   {wanted:12}{'' if self.holds(slack) else 'MISSED'}"


@dataclass
class Table:
    """Claims as they come in, each printed at once."""

    short: bool = False
    claims: list[Claim] = field(default_factory=list)

    def head(self, title: str) -> None:
        if not self.claims:
            print(machine() + (", short form" if self.short else ""))
        print(f"\n{title}", flush=True)

    def add(self, name: str, value: float, *, least: float | None = None, most: float | None = None) -> None:
        claim = Claim(name, value, least, most)
        self.claims.append(claim)
        print("  " + claim.text(self.slack), flush=True)

    @property
    def slack(self) -> float:
        return SLACK if self.short else 1.0

    @property
    def status(self) -> int:
        return 0 if all(claim.holds(self.slack) for claim in self.claims) else 1
