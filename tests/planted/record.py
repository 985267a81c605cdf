"""Writes a row of "Planted bugs" in docs/reliability.md: record.py BUG FOUND-BY FINDINGS COMMIT. A row of the same bug is replaced."""

import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/reliability.md"
HEADS = {True: "| planted bug | violations found | commit |", False: "| planted bug | tests | failed | commit |"}


def main(bug: str, found_by: str, findings: str, commit: str) -> None:
    is_chaos = found_by == "chaos"
    cells = [bug, f"{int(findings):,}", f"`{commit}`"]
    if not is_chaos:
        cells.insert(1, f"`{found_by}`")
    row = f"| {' | '.join(cells)} |"
    lines = PAGE.read_text().splitlines()
    begin = lines.index(HEADS[is_chaos]) + 2
    end = next(at for at in range(begin, len(lines)) if not lines[at].startswith("|"))
    place = next((at for at in range(begin, end) if lines[at].startswith(f"| {bug} |")), None)
    if place is None:
        lines.insert(end, row)
    else:
        lines[place] = row
    PAGE.write_text("\n".join(lines) + "\n")


main(*sys.argv[1:])
