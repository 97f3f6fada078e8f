"""The smallest ASGI application on the server that the emulator runs on: TLS, one JSON answer to every request.

``python -m benchmarks.smallest_asgi`` prints its port, its process id and the file of its authority as JSON, and serves
until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from typing import Any

__all__ = ["answer"]


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, and answer success."""
    while (await receive()).get("more_body"):
        pass
    head = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": b"{}"})


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


def _main() -> None:
    import uvicorn
    import uvloop

    from pytest_cloudbench.emulators.tls import make_certificate

    folder = make_certificate(["localhost", "127.0.0.1"])
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        answer, http="httptools", ws="none", lifespan="off", loop="none", interface="asgi3", log_level="warning",
        ssl_certfile=os.path.join(folder, "server.pem"), access_log=False, server_header=False, date_header=False,
        proxy_headers=False, timeout_keep_alive=600,
    )  # fmt: skip
    threading.Thread(target=_end_with_input, daemon=True).start()
    ready = {"port": listener.getsockname()[1], "pid": os.getpid(), "ca_file": os.path.join(folder, "ca.pem")}
    print(json.dumps(ready), flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    _main()
