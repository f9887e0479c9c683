"""Where a node's socket is, and whether what listens there is that user's node.

The data folder is `$HAIL_DATA`, else `$XDG_DATA_HOME/hailwire`, else `~/.local/share/hailwire`; the socket is
`run/hail.sock` in it. Whoever could put a socket in its place would be told what is meant for the node, so a program
looks whose the folder, the socket and the process at the other end are before it writes a byte.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

_MAX_SOCKET_PATH = 107


def default_data_dir() -> Path | None:
    """The data folder that the environment names; None where it names no home either."""
    if folder := os.environ.get("HAIL_DATA"):
        return Path(folder)
    if folder := os.environ.get("XDG_DATA_HOME"):
        return Path(folder) / "hailwire"
    if folder := os.environ.get("HOME"):
        return Path(folder) / ".local/share/hailwire"
    return None


def open_socket(data_dir: Path) -> socket.socket:
    """Connects to the node of a data folder, without waiting for more than the system does.

    Raises OSError: FileNotFoundError or ConnectionRefusedError where no node runs, PermissionError where the socket may
    be somebody else's.
    """
    owner = data_dir.stat().st_uid
    if os.geteuid() not in (0, owner):
        raise PermissionError(f"{data_dir} belongs to user {owner}")
    run = data_dir / "run"
    folder = os.open(run, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        of_folder = os.fstat(folder)
        if of_folder.st_uid != owner:
            raise PermissionError(f"{run} belongs to user {of_folder.st_uid}, not to {owner}")
        if of_folder.st_mode & 0o022:
            raise PermissionError(f"{run} can be written by others")
        of_socket = os.stat("hail.sock", dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISSOCK(of_socket.st_mode) or of_socket.st_uid != owner:
            raise PermissionError(f"{run}/hail.sock is not a socket of its owner's node")
        # Through the open folder: nobody can put another in its place meanwhile, and no path is too long.
        path = f"/proc/self/fd/{folder}/hail.sock"
        if not Path("/proc/self/fd").exists():
            path = str(run / "hail.sock")
            if len(path.encode()) > _MAX_SOCKET_PATH:
                raise OSError(f"the path {path} is longer than {_MAX_SOCKET_PATH} bytes")
        return _connected(path, owner)
    finally:
        os.close(folder)


def _connected(path: str, owner: int) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
        if hasattr(socket, "SO_PEERCRED"):
            size = struct.calcsize("3i")
            _, other, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
            if other != owner:
                raise PermissionError(f"a process of user {other} listens there, not one of user {owner}")
        connection.setblocking(False)
    except BaseException:
        connection.close()
        raise
    return connection
