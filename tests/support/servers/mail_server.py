"""A mail server that keeps what it gets: enough of SMTP (RFC 5321) for one client at a time, over a real socket."""

from __future__ import annotations

import socketserver
import threading
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import cast


@dataclass
class MailServer:
    """`refuses`: the answer to RCPT TO instead of taking the address, such as "550 nobody here"."""

    refuses: str = ""
    got: list[EmailMessage] = field(default_factory=list)
    recipients: list[str] = field(default_factory=list)

    def __enter__(self) -> MailServer:
        mail = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                mail._talk(self)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _talk(self, line: socketserver.StreamRequestHandler) -> None:
        def say(text: str) -> None:
            line.wfile.write(f"{text}\r\n".encode())

        say("220 here")
        while command := line.rfile.readline().decode().strip():
            verb = command.split()[0].upper()
            if verb == "RCPT" and self.refuses:
                say(self.refuses)
            elif verb == "DATA":
                say("354 go on")
                lines = []
                while (text := line.rfile.readline()) not in {b".\r\n", b""}:
                    lines.append(text.removeprefix(b".") if text.startswith(b"..") else text)
                self.got.append(cast(EmailMessage, message_from_bytes(b"".join(lines), policy=policy.default)))
                say("250 taken")
            elif verb == "QUIT":
                say("221 bye")
                return
            else:
                self.recipients += [command.partition(":")[2].strip(" <>")] if verb == "RCPT" else []
                say("250 fine")
