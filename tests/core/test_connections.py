"""Connections to a server, as the kernel lists them."""

from __future__ import annotations

import socket
from pathlib import Path

from registry.core.kinds import tells_live
from serving.targets.adapters.linux_connections import open_connections

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(port: int, state: str, remote: int = 0xBEEF) -> str:
    return f"   0: 0100007F:{port:04X} 0100007F:{remote:04X} {state} 00000000:00000000 00:00000000 00000000  0 0 1\n"


def test_established_and_half_closed_connections_to_its_ports_count(tmp_path: Path) -> None:
    four, six = tmp_path / "tcp", tmp_path / "tcp6"
    four.write_text(
        HEAD + row(8000, "01") + row(8000, "08") + row(8000, "0A") + row(8000, "06") + row(9000, "01", 8000)
    )
    six.write_text(
        HEAD + "   0: 00000000000000000000000001000000:1F41 00000000000000000000000001000000:BEEF 01 0 0 0\n"
    )
    assert open_connections({8000, 8001}, (four, six)) == 3
    assert open_connections({7000}, (four, six)) == 0


def test_lists_that_cannot_be_read_are_no_number(tmp_path: Path) -> None:
    assert open_connections({8000}, (tmp_path / "none",)) is None


def test_a_real_connection_is_seen_from_its_servers_side() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert open_connections({port}) == 0
        with socket.create_connection(("127.0.0.1", port)):
            assert open_connections({port}) == 1


def test_only_servers_that_were_tried_are_taken_to_answer_beside_their_work() -> None:
    assert tells_live("triton") and not any(map(tells_live, ("kserve", "mlserver", "")))
