"""A database whose host is cut off answers nothing at all: every connection to it is told when to give up."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import psycopg
import pytest
from django.db import connection

from serving.traffic.control_plane import change_listener

pytestmark = pytest.mark.django_db


def _of_django() -> psycopg.Connection[tuple[object, ...]]:
    connection.ensure_connection()
    assert connection.connection is not None
    return connection.connection  # type: ignore[no-any-return]


@pytest.mark.parametrize("connect", [_of_django, change_listener._connect])
def test_its_kernel_gives_up_after_ten_seconds(connect: Callable[[], psycopg.Connection[tuple[object, ...]]]) -> None:
    session = connect()
    with socket.socket(fileno=os.dup(session.fileno())) as line:
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000  # ms
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == 2
    assert session.info.get_parameters()["connect_timeout"] == "10"
    if session is not connection.connection:
        session.close()
