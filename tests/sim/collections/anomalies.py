"""Anomalies: what no strictly serializable history of transactions on lists contains. Pure.

The idea is Elle's (Kingsbury and Alvaro, 2020). Each element is appended at most once, and who reads a list
sees in which order its elements came. So the order of all versions of a key is known without asking the
store, and with it which transaction depends on which:

* ``ww``: it appended the element after the other's;
* ``wr``: it read the other's element as the last one;
* ``rw``: it read the list without the element that the other appended next;
* ``rt``: it began after the other had ended.

A cycle of these is impossible if the transactions took effect one by one, each between its beginning and
its end. Its name says how bad it is: G0 is a cycle of ``ww`` only, G1c has ``wr`` too, G-single exactly one
``rw``, G2 several; ``-realtime`` is added if it needs an ``rt``.

A transaction whose outcome is unknown counts if somebody read one of its elements; then it happened.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal, NamedTuple

Status = Literal["ok", "failed", "unknown"]
Kind = Literal["ww", "wr", "rw", "rt"]
List = tuple[int, ...]


class Append(NamedTuple):
    """Adds an element, which no other append ever adds, at the end of a key's list."""

    key: int
    element: int


class Read(NamedTuple):
    """Saw a key's list."""

    key: int
    found: List


@dataclass(eq=False)
class Transaction:
    """What one program did at once, in its order."""

    name: str
    began: float = 0.0
    ended: float = math.inf
    """When its outcome was known; never, if it is unknown."""
    status: Status = "unknown"
    is_stale: bool = False
    """Whether it asked for an earlier time: it may miss what had ended before it began."""
    steps: list[Append | Read] = field(default_factory=list)

    def appended(self) -> dict[int, list[int]]:
        """Return the elements that it appends, by the key."""
        found: dict[int, list[int]] = {}
        for step in self.steps:
            if isinstance(step, Append):
                found.setdefault(step.key, []).append(step.element)
        return found

    def first_reads(self) -> dict[int, List]:
        """Return what it read of each key before it appended to it."""
        found: dict[int, List] = {}
        changed: set[int] = set()
        for step in self.steps:
            if isinstance(step, Append):
                changed.add(step.key)
            elif step.key not in changed:
                found.setdefault(step.key, step.found)
        return found


class Anomaly(NamedTuple):
    """What was found."""

    name: str
    story: str


class Edge(NamedTuple):
    """``before`` took effect before ``after``."""

    before: Transaction
    after: Transaction
    kind: Kind
    why: str

    def __str__(self) -> str:
        return f"{self.before.name} -{self.kind}-> {self.after.name} ({self.why})"


Graph = Mapping[Transaction, Sequence[Edge]]

CYCLES: Final[tuple[tuple[str, Kind, frozenset[Kind]], ...]] = (
    ("G0", "ww", frozenset({"ww"})),
    ("G1c", "wr", frozenset({"ww", "wr"})),
    ("G-single", "rw", frozenset({"ww", "wr"})),
    ("G2", "rw", frozenset({"ww", "wr", "rw"})),
)
"""Name, an edge that the cycle has, and what its other edges may be; the worst come first."""


def find_anomalies(history: Iterable[Transaction]) -> list[Anomaly]:
    """Return what is wrong with a history, the plainest first; nothing if it is strictly serializable."""
    transactions = list(history)
    writers = {
        element: transaction
        for transaction in transactions
        for elements in transaction.appended().values()
        for element in elements
    }
    read = {
        element
        for transaction in transactions
        if transaction.status == "ok"
        for _, found in _reads(transaction)
        for element in found
    }
    happened = [one for one in transactions if one.status == "ok" or _was_seen(one, read)]
    anomalies = [anomaly for one in happened for anomaly in _inside(one)]
    anomalies += [anomaly for one in happened for anomaly in _wrong_reads(one, writers)]
    orders: dict[int, List] = {}
    for one in happened:
        for key, values in _reads(one):
            known = orders.setdefault(key, ())
            short, long = sorted((known, values), key=len)
            orders[key] = long
            if long[: len(short)] != short:
                story = f"{one.name} read {values} of key {key}, not {known}"
                anomalies.append(Anomaly("incompatible-order", story))
    anomalies += _lost_appends(happened, orders)
    anomalies += _lost_updates(happened)
    return anomalies + find_cycles(dependencies(happened, orders, writers))


def _was_seen(transaction: Transaction, read: Collection[int]) -> bool:
    elements = [element for some in transaction.appended().values() for element in some]
    return transaction.status == "unknown" and any(element in read for element in elements)


def _reads(transaction: Transaction) -> Iterator[tuple[int, List]]:
    """Yield what a transaction read, without the elements that it appended before at the end."""
    own: dict[int, int] = defaultdict(int)
    for step in transaction.steps:
        if isinstance(step, Append):
            own[step.key] += 1
        else:
            yield step.key, step.found[: len(step.found) - own[step.key]]


def _inside(transaction: Transaction) -> Iterator[Anomaly]:
    """A transaction sees what it read and appended itself, and nothing else comes in between."""
    expected: dict[int, List] = {}
    own: dict[int, List] = {}
    for step in transaction.steps:
        key = step.key
        if isinstance(step, Append):
            own[key] = (*own.get(key, ()), step.element)
            if key in expected:
                expected[key] = (*expected[key], step.element)
            continue
        ending = own.get(key, ())
        is_wrong = key in expected and step.found != expected[key]
        if is_wrong or step.found[len(step.found) - len(ending) :] != ending:
            wanted = expected.get(key, ("…", *ending))
            story = f"{transaction.name} read {step.found} of key {key}, not {wanted}"
            yield Anomaly("internal", story)
        expected[key] = step.found


def _wrong_reads(one: Transaction, writers: Mapping[int, Transaction]) -> Iterator[Anomaly]:
    """Elements that nobody appended, twice, or not for good; and lists in the middle of a transaction."""
    for key, found in _reads(one):
        if len(set(found)) != len(found):
            yield Anomaly("duplicate", f"{one.name} read {found} of key {key}")
        for element in found:
            writer = writers.get(element)
            if writer is None or element not in writer.appended().get(key, ()):
                yield Anomaly("invented", f"{one.name} read {element} of key {key}: {found}")
            elif writer.status == "failed":
                yield Anomaly("G1a", f"{one.name} read {element}, which {writer.name} took back")
        last = writers.get(found[-1]) if found else None
        if last is None or last is one:
            continue
        elements = last.appended().get(key, [])
        if found[-1] in elements[:-1]:
            yield Anomaly("G1b", f"{one.name} read {found}, and {last.name} appended {elements}")


def _lost_appends(happened: Sequence[Transaction], orders: Mapping[int, List]) -> Iterator[Anomaly]:
    """An element that was appended is in every list that is read later, so also in the longest one."""
    latest: dict[int, float] = {}
    for one in happened:
        for key in one.first_reads() if not one.is_stale else ():
            latest[key] = max(latest.get(key, -math.inf), one.began)
    for one in happened:
        for key, elements in one.appended().items():
            missing = [element for element in elements if element not in orders.get(key, ())]
            if missing and one.ended < latest.get(key, -math.inf):
                yield Anomaly("lost-append", f"nobody read {missing} of {one.name}, key {key}")


def _lost_updates(happened: Sequence[Transaction]) -> Iterator[Anomaly]:
    """Of two transactions that read the same list only one may have appended to it next."""
    first: dict[tuple[int, List], Transaction] = {}
    for one in happened:
        reads = one.first_reads()
        for key in one.appended().keys() & reads.keys():
            other = first.setdefault((key, reads[key]), one)
            if other is not one:
                story = f"{other.name} and {one.name} both appended to {reads[key]} of key {key}"
                yield Anomaly("lost-update", story)


def dependencies(
    happened: Sequence[Transaction],
    orders: Mapping[int, List],
    writers: Mapping[int, Transaction],
) -> list[Edge]:
    """Return all edges between transactions; those of real time are left out where others imply them."""
    edges: list[Edge] = []

    def add(before: Transaction | None, after: Transaction | None, kind: Kind, why: str) -> None:
        if before is not None and after is not None and before is not after:
            edges.append(Edge(before, after, kind, why))

    following: dict[tuple[int, int | None], Transaction | None] = {}
    for key, order in orders.items():
        for element, after in pairwise(order):
            add(writers.get(element), writers.get(after), "ww", f"key {key}: {element}, {after}")
        for element, after in pairwise((None, *order)):
            following[key, element] = writers.get(after) if after is not None else None
    for one in happened:
        for key, found in _reads(one):
            last = found[-1] if found else None
            if last is not None:
                add(writers.get(last), one, "wr", f"key {key}: {last}")
            add(one, following.get((key, last)), "rw", f"key {key}: after {last}")
    return edges + list(_in_real_time(happened))


def _in_real_time(happened: Sequence[Transaction]) -> Iterator[Edge]:
    ended: list[Transaction] = []  # of which none ended before another one of them began
    events = [(one.began, 1, number) for number, one in enumerate(happened) if not one.is_stale]
    events += [(one.ended, 0, number) for number, one in enumerate(happened) if one.status == "ok"]
    for at, begins, number in sorted(events):
        one = happened[number]
        if begins:
            for before in ended:
                if before.ended < at:
                    yield Edge(before, one, "rt", f"ended {before.ended:.3f}, began {at:.3f}")
        else:
            # A stale one is after nothing, so it implies nothing of those before it.
            ended = [other for other in ended if one.is_stale or other.ended >= one.began]
            ended.append(one)


def find_cycles(edges: Sequence[Edge]) -> list[Anomaly]:
    """Return the worst cycle, if there is one; without ``rt`` if possible."""
    for suffix, extra in (("", frozenset[Kind]()), ("-realtime", frozenset[Kind]({"rt"}))):
        for name, first, rest in CYCLES:
            cycle = _cycle(edges, first, rest | extra)
            if cycle is not None:
                return [Anomaly(name + suffix, "; ".join(map(str, cycle)))]
    return []


def _cycle(edges: Sequence[Edge], first: Kind, rest: frozenset[Kind]) -> list[Edge] | None:
    """Return the shortest cycle of an edge of the kind ``first`` and others of the kinds ``rest``."""
    kinds = rest | {first}
    graph: dict[Transaction, list[Edge]] = defaultdict(list)
    for edge in edges:
        if edge.kind in kinds:
            graph[edge.before].append(edge)
    component = components(graph)
    found: list[list[Edge]] = []
    for edge in edges:
        if edge.kind == first and component[edge.before] == component[edge.after]:
            way = _shortest_way(graph, edge.after, edge.before, rest)
            if way is not None:
                found.append([edge, *way])
    return min(found, key=len, default=None)


def _shortest_way(
    graph: Graph, start: Transaction, end: Transaction, kinds: frozenset[Kind]
) -> list[Edge] | None:
    came: dict[Transaction, Edge | None] = {start: None}
    waiting = deque([start])
    while waiting and end not in came:
        for edge in graph.get(waiting.popleft(), ()):
            if edge.kind in kinds and edge.after not in came:
                came[edge.after] = edge
                waiting.append(edge.after)
    if end not in came:
        return None
    way: list[Edge] = []
    at = came[end]
    while at is not None:
        way.insert(0, at)
        at = came[at.before]
    return way


def components(graph: Graph) -> dict[Transaction, int]:
    """Return the number of the strongly connected component of each transaction: Tarjan's algorithm."""
    index: dict[Transaction, int] = {}
    low: dict[Transaction, int] = {}
    component: dict[Transaction, int] = {}
    stack: list[Transaction] = []
    nodes = list(graph) + [edge.after for edges in graph.values() for edge in edges]
    for root in nodes:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        path = [(root, iter(graph.get(root, ())))]
        while path:
            node, edges = path[-1]
            for edge in edges:
                after = edge.after
                if after not in index:
                    index[after] = low[after] = len(index)
                    stack.append(after)
                    path.append((after, iter(graph.get(after, ()))))
                    break
                if after not in component:
                    low[node] = min(low[node], index[after])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    number = len(component)
                    while True:
                        one = stack.pop()
                        component[one] = number
                        if one is node:
                            break
    return component
