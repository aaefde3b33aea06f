"""`python benchmarks/run.py BENCHMARK [options]`: run a benchmark of trifold with its peers.

The environment `.bench-venv` is made on the first run, and again when `peers.txt` has changed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parent / ".bench-venv"
PEERS = HERE / "peers.txt"
BENCHMARKS = {
    "train": HERE / "train_translation" / "run.py",
    "generate": HERE / "generate" / "run.py",
    "decode": HERE / "decode" / "run.py",
    "encode": HERE / "encode" / "run.py",
    "decoder": HERE / "train_decoder" / "run.py",
    "defaults": HERE / "defaults" / "run.py",
    "contention": HERE / "contention.py",
}


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in BENCHMARKS:
        print(
            f"usage: python benchmarks/run.py {{{','.join(BENCHMARKS)}}} [options]", file=sys.stderr
        )
        return 2
    python = peers_python()
    command = [python, BENCHMARKS[sys.argv[1]], *sys.argv[2:]]
    if find_spec("trifold") and "--trifold-python" not in sys.argv:
        # The caller's environment has trifold, which is measured there.
        command += ["--trifold-python", sys.executable]
    return subprocess.call([str(part) for part in command])


def peers_python() -> Path:
    """Interpreter of the peers' environment, which is installed from peers.txt at first use."""
    python = ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = ENVIRONMENT / "peers.sha256"
    wanted = hashlib.sha256(PEERS.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"Installing the peers into {ENVIRONMENT} (once) …", file=sys.stderr)
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    subprocess.run([str(python), "-m", "pip", "install", "-qq", "-r", str(PEERS)], check=True)
    stamp.write_text(wanted, encoding="utf-8")
    return python


if __name__ == "__main__":
    sys.exit(main())
