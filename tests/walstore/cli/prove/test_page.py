"""The page of walstore prove: the verdict, what was tried, and text that is shown as it is."""

from __future__ import annotations

from typing import Any

from walstore.cli.prove.page import prove_page

TRIALS = {"kills": ("Writers are killed.", "Nothing is lost."), "flips": ("Bits flip.", "Noticed.")}
REPORT: dict[str, Any] = {
    "ok": True,
    "location": "/mnt/<disk>",
    "seed": 7,
    "last_seed": 9,
    "kinds": ["kills", "flips"],
    "seconds": 180.0,
    "interrupted": False,
    "rounds": {"kills": 2, "flips": 1},
    "counts": {"kills": {"kills": 20, "checked": 12345}, "flips": {"checked": 6}},
    "environment": {"file system": "ext4 on /dev/<vda>"},
    "not_tried": [{"what": "cutting the power", "why": "no program can"}],
    "rule": None,
    "repeat": None,
    "evidence": None,
    "problems": [],
}


def test_what_held() -> None:
    page = prove_page(REPORT, TRIALS)
    assert "All rules held: 3 rounds in 3.0 minutes." in page
    assert "<th>kills</th><td>checked 12 345, kills 20</td>" in page
    assert "<th>flips</th><td>checked 6</td>" in page
    assert "<th>last seed</th><td>9</td>" in page
    assert "<th>cutting the power</th><td>no program can</td>" in page
    assert "ext4 on /dev/&lt;vda&gt;" in page
    assert "<disk>" not in page
    assert "color-scheme: light dark" in page


def test_what_was_broken() -> None:
    broken = {
        "ok": False,
        "interrupted": True,
        "problems": ["kills, seed 9: the log ends at 3 < 5"],
        "rule": "Nothing is lost.",
        "repeat": "walstore prove '/mnt/<disk>' --only kills --seed 9",
        "evidence": "/mnt/<disk>/walstore-prove-x/kills-9",
    }
    page = prove_page(REPORT | broken, TRIALS)
    assert "A rule was broken after 3 rounds in 3.0 minutes, ended early." in page
    assert "<p>kills, seed 9: the log ends at 3 &lt; 5</p>" in page
    assert "<p>The rule: Nothing is lost.</p>" in page
    assert "--only kills --seed 9</code>" in page
    assert "walstore-prove-x/kills-9</code>" in page
