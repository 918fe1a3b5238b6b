"""What a benchmark claims: figures beside their limits, as a table whose verdict is the exit status.

A claim is a ratio with a limit, or a figure that is only told. The short form is what CI runs, on small models and a
busy machine, to see that nothing gets worse: it fails where a ratio falls below 70 % of its limit, or of what was
reached so far where that is less than what is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.timing import machine

SLACK = 0.7


@dataclass(frozen=True)
class Claim:
    """value is to be at least `least`, or at most `most`; neither: it is told only. reached: what it has come to so
    far, where that is not enough."""

    name: str
    value: float
    least: float | None = None
    most: float | None = None
    reached: float | None = None

    @property
    def holds(self) -> bool:
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def is_kept(self) -> bool:
        """Whether it is no worse than 70 % of what is claimed or was reached."""
        least, most = (limit if limit is None else self.reached or limit for limit in (self.least, self.most))
        return (least is None or self.value >= least * SLACK) and (most is None or self.value <= most / SLACK)

    def text(self) -> str:
        wanted = f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}" if self.most else ""
        verdict = "" if self.holds else "missed" if self.is_kept else "WORSE"
        return f"{self.name:74}{self.value:12.3g}   {wanted:12}{verdict}"


@dataclass
class Table:
    """Claims as they come in, each printed at once."""

    short: bool = False
    claims: list[Claim] = field(default_factory=list)

    def head(self, title: str) -> None:
        if not self.claims:
            print(machine() + (", short form" if self.short else ""))
        print(f"\n{title}", flush=True)

    def add(
        self,
        name: str,
        value: float,
        *,
        least: float | None = None,
        most: float | None = None,
        reached: float | None = None,
    ) -> None:
        claim = Claim(name, value, least, most, reached)
        self.claims.append(claim)
        print("  " + claim.text(), flush=True)

    @property
    def status(self) -> int:
        return 0 if all(claim.is_kept if self.short else claim.holds for claim in self.claims) else 1
