"""The wire protocol, without I/O: bytes in, events and bytes out.

Nothing in this package reads a clock, a socket or a file. It follows the pages of `spec/` and is held to their golden
vectors by the tests: `msgpack` reads and writes headers, `headers` knows their fields, `frames` cuts a stream into
frames, `mux` carries many streams over one byte stream, `records` reads messages of topics.
"""
