#!/usr/bin/env -S python -I -S
"""Exit with 0 if the service at the URL given is alive: http(s):// is fetched, tcp:// connected.

Without the site packages and with few imports: every container runs it every few seconds.
"""

import socket
import sys

scheme, _, place = sys.argv[1].partition("://")
address, _, path = place.partition("/")
host, _, port = address.partition(":")
connection = socket.create_connection((host, int(port)), timeout=5)
if scheme == "https":
    import ssl

    # Loopback, and whether it is alive, not who it is: the CA is not looked for.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    connection = context.wrap_socket(connection)
if scheme != "tcp":
    connection.sendall(f"GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
    if b" 200 " not in connection.recv(64):
        sys.exit(1)
connection.close()
