"""No network: every Python that starts with this folder on PYTHONPATH refuses to reach another machine.

Python imports a module of this name at its start. The refusal is no OSError on purpose: code that would go on quietly
without a network is found too.
"""

import socket
import sys
from typing import Any

LOCAL = ("localhost", "::1", "0.0.0.0", "::", "", socket.gethostname())


def is_local(host: Any) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    return name is None or name in LOCAL or str(name).startswith("127.")


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None  # a path is a socket of this machine
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if not is_local(host):
        raise RuntimeError(f"no network: tests and notebooks must not reach {host!r}")


sys.addaudithook(refuse)
