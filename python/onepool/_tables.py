"""What sessions tell of themselves, as tables: text for a terminal, HTML for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any, Generic, NamedTuple, TypeVar, overload

Row = TypeVar("Row")


class Table(Sequence[Row], Generic[Row]):
    """Rows, a heading for each column, and lines above them."""

    columns: tuple[str, ...] = ()

    def __init__(self, rows: Iterable[Row], lines: Sequence[str] = ()) -> None:
        self._rows = list(rows)
        self.lines = list(lines)

    def cells(self, row: Row) -> tuple[Any, ...]:
        """What stands in the columns of a row."""
        return row if isinstance(row, tuple) else (row,)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def _texts(self) -> list[tuple[str, ...]]:
        return [tuple("" if cell is None else str(cell) for cell in self.cells(row)) for row in self]

    def __str__(self) -> str:
        rows = [self.columns, *self._texts()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.columns))]
        text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*self.lines, *text])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        def row(tag: str, cells: Iterable[str]) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        lines = "".join(f"<p>{escape(line)}</p>" for line in self.lines)
        body = "".join(row("td", cells) for cells in self._texts())
        return f"{lines}<table><thead>{row('th', self.columns)}</thead><tbody>{body}</tbody></table>"


class Verdict(NamedTuple):
    """How the bytes of one array reach the device."""

    tensor: str
    """The input or output."""
    path: str
    """"host", "direct", "imported", "imported_dma", "dma_buf" or "staged"; only the last is a copy by the CPU."""
    access: str
    """"read", "write" or "read_write"."""
    bytes: int
    """Its size."""
    offset: int
    """Where in its import it starts, in bytes."""
    cpu_copied: int
    """Bytes that the CPU copies in each run."""
    device_copied: int
    """Bytes that the device copies in each run."""
    reason: str
    """Why this path."""
    fix: str | None
    """What the program can do for a better one."""


class Verdicts(Table[Verdict]):
    """How each array of a run reached the devices, and why."""

    columns = Verdict._fields

    @property
    def copied(self) -> int:
        """Bytes that the CPU copies in each run."""
        return sum(verdict.cpu_copied for verdict in self)


class Node(NamedTuple):
    """One operator of a plan."""

    name: str
    op: str
    device: int
    commands: int
    flops: int
    bytes: int
    output: str
    fallback: str | None


class Plan(Table[Node]):
    """What runs where, in which order. `report` has all of it."""

    columns = Node._fields

    def __init__(self, report: dict[str, Any]) -> None:
        self.report = report
        nodes = (
            Node(
                n["name"],
                n["op"],
                n["device"],
                n["commands"],
                n["cost"]["flops"],
                n["cost"]["bytes"],
                n["output"],
                n["fallback"],
            )
            for n in report["nodes"]
        )
        arenas = sum(arena["bytes"] for arena in report["arenas"])
        line = (
            f"{report['graph_nodes']} nodes of the model, {len(report['nodes'])} in the plan, {report['commands']} commands, "
            f"{report['barriers']} barriers, {arenas} bytes of arenas, {report['constant_bytes']} bytes of constants"
        )
        super().__init__(nodes, [line, *report["remarks"]])


class NodeTime(NamedTuple):
    """The time of one operator in one run."""

    name: str
    op: str
    device: int
    begin_us: float
    us: float
    flops: int
    bytes: int


class Profile(Table[NodeTime]):
    """The times of one run, operator by operator. `report` has all of it."""

    columns = NodeTime._fields

    def __init__(self, report: dict[str, Any]) -> None:
        self.report = report
        nodes = (
            NodeTime(
                n["name"],
                n["op"],
                n["device"],
                n["begin_nanos"] / 1000,
                n["nanos"] / 1000,
                n["cost"]["flops"],
                n["cost"]["bytes"],
            )
            for n in report["nodes"]
        )
        line = (
            f"{report['host_nanos'] / 1000:.1f} us in all, {report['device_nanos'] / 1000:.1f} us of it on devices; "
            f"{report['bytes_moved']} bytes copied in each run, {report['bytes_not_moved']} used in place"
        )
        super().__init__(nodes, [line])


class Device(NamedTuple):
    """A device that `Session` may be given."""

    selector: str
    """Its name for `Session`."""
    name: str
    """As its driver calls it."""
    kind: str
    driver: str
    imports: bool
    """Whether it uses the program's arrays in place."""
    unusable: str | None
    """Why it cannot be used, if it cannot."""


class Devices(Table[Device]):
    """The devices that there are. `report` has all that is known of them."""

    columns = Device._fields

    def __init__(self, report: list[dict[str, Any]]) -> None:
        self.report = report

        def device(row: dict[str, Any]) -> Device:
            if "error" in row:
                return Device(row["selector"], "", "", "", False, row["error"])
            info = row["info"]
            imports = info["native"] or info["import"] is not None
            kind = str(info["kind"])
            return Device(row["selector"], info["name"], kind, info["driver"], imports, info["unusable"])

        super().__init__(map(device, report))
