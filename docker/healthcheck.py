#!/usr/bin/env python
"""Exit with 0 if the service at the URL given is alive: http(s):// is fetched, tcp:// connected."""

import socket
import ssl
import sys
import urllib.parse
import urllib.request

url = urllib.parse.urlsplit(sys.argv[1])
if url.scheme == "tcp":
    socket.create_connection((url.hostname, url.port), timeout=3).close()
else:
    # Loopback, and whether it is alive, not who it is: the CA is not looked for.
    context = ssl._create_unverified_context()
    urllib.request.urlopen(sys.argv[1], timeout=3, context=context).close()
