"""An optimiser outside of clew that takes part in a study of a server, through REST and the standard library alone.

    python examples/rest_optimiser.py http://127.0.0.1:8470 TOKEN

The server proposes settings and stores the results; this program could run anywhere and be written in any language.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any


def call(server: str, token: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Send a request (POST with a body, else GET) and return the answer."""
    request = urllib.request.Request(
        f"{server}/api/v1{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def objective(settings: dict[str, float]) -> float:
    """Your own simulation or training comes here. The smallest value, 0, is at x = 3 and y = -1."""
    return (settings["x"] - 3) ** 2 + (settings["y"] + 1) ** 2


def main(server: str, token: str) -> None:
    """Make a study, run its trials and print the best one."""
    space = {"x": {"uniform": [-10, 10]}, "y": {"uniform": [-10, 10]}}
    tune = {"space": space, "trials": 25, "sampler": {"name": "tpe", "seed": 1}}
    study = call(server, token, "/studies", {"name": "outside", "tune": tune})["id"]
    # a trial without a result within ten minutes is proposed to the next program that asks
    while trials := call(server, token, f"/studies/{study}/ask", {"count": 1, "within": 600}):
        for trial in trials:
            result = {"trial": trial["trial"], "lease": trial["lease"], "values": [objective(trial["settings"])]}
            call(server, token, f"/studies/{study}/tell", result)
    best = call(server, token, f"/studies/{study}/best")
    sys.stdout.write(f"study {study}: {json.dumps(best)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
