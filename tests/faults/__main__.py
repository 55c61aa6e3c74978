"""Run the fault matrix and print it as a table: `python -m tests.faults [options of pytest]`.

Everything runs, the rows of minutes too; `-m "not long"` leaves them out. What this machine cannot do is skipped, and
said on stderr with the rest of pytest's words. The exit status is pytest's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.seen import VARIABLE, table


def main() -> int:
    """Run it."""
    with tempfile.TemporaryDirectory(prefix="sandman-faults-") as folder:
        file = Path(folder) / "seen.jsonl"
        file.touch()
        command = [sys.executable, "-m", "pytest", str(Path(__file__).parent), *sys.argv[1:]]
        done = subprocess.run(command, check=False, stdout=sys.stderr, env={**os.environ, VARIABLE: str(file)})
        print(table(file.read_text().splitlines()))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
