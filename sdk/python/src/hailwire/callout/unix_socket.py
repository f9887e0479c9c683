"""A Unix socket as a stream of bytes, and one to listen on.

The socket's file has mode 0600 before anybody can connect, and goes with the listener. Where the system says who
connects, only the user that the file belongs to and root are served.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from typing import Final

_LIMIT: Final = 256 << 10
_CLOSE_WITHIN: Final = 1.0


class SocketStream:
    """A connected socket as a :class:`~hailwire.callout.ByteStream`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, path: str) -> SocketStream:
        """Connects to a socket's path. Raises :class:`OSError`."""
        return cls(*await asyncio.open_unix_connection(path, limit=_LIMIT))

    @classmethod
    async def accepted(cls, connection: socket.socket) -> SocketStream:
        """A connection that was accepted."""
        return cls(*await asyncio.open_unix_connection(sock=connection, limit=_LIMIT))

    async def read(self, limit: int, /) -> bytes:
        """Some bytes; none at the end."""
        return await self._reader.read(limit)

    async def write(self, data: bytes, /) -> None:
        """Writes all of it."""
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """Ends both directions; what the other side does not take within a second is dropped."""
        self._writer.close()
        try:
            await asyncio.wait_for(self._writer.wait_closed(), _CLOSE_WITHIN)
        except (OSError, asyncio.TimeoutError):
            self._writer.transport.abort()


class UnixListener:
    """A Unix socket that is listened on."""

    def __init__(self, path: str) -> None:
        """Listens. Raises :class:`OSError`: :class:`FileExistsError` where something else is, or somebody listens."""
        _refuse_what_lives(path)
        new = f"{path}.new"
        if os.path.lexists(new):
            os.unlink(new)
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(new)
            os.chmod(new, 0o600)
            self._owner = os.stat(new).st_uid
            self._inode = os.stat(new).st_ino
            # Nobody can connect before this, and nobody finds the path before it has its mode.
            self._socket.listen(128)
            os.rename(new, path)
        except OSError:
            self._socket.close()
            if os.path.lexists(new):
                os.unlink(new)
            raise

    async def accept(self) -> socket.socket:
        """The next connection of a user that may connect. Raises :class:`OSError`."""
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._socket)
            if _peer_user(connection) in (None, 0, self._owner):
                return connection
            connection.close()

    def close(self) -> None:
        """Listens no more. The file goes, unless it is somebody else's by now."""
        self._socket.close()
        try:
            if os.lstat(self.path).st_ino == self._inode:
                os.unlink(self.path)
        except FileNotFoundError:
            pass


def _peer_user(connection: socket.socket) -> int | None:
    """Who connected, where the system says."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    credentials = struct.Struct("3i")
    _, user, _ = credentials.unpack(connection.getsockopt(socket.SOL_SOCKET, option, credentials.size))
    return int(user)


def _refuse_what_lives(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(f"{path} exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return
    raise FileExistsError(f"somebody listens at {path}")
