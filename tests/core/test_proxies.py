"""Which proxy leads where."""

from __future__ import annotations

import pytest

from ledger.core.proxies import proxy_for, without_login

PROXY = "http://proxy.corp.example:3128"
ALL = {"HTTPS_PROXY": PROXY, "HTTP_PROXY": PROXY}


@pytest.mark.parametrize(
    ("environ", "url", "proxy"),
    [
        ({}, "https://a.example", ""),
        ({"HTTPS_PROXY": PROXY}, "https://a.example", PROXY),
        ({"https_proxy": PROXY}, "https://a.example", PROXY),
        ({"HTTPS_PROXY": PROXY}, "http://a.example", ""),
        ({"HTTP_PROXY": PROXY}, "http://a.example", PROXY),
        ({"HTTP_PROXY": PROXY}, "https://a.example", ""),
        ({"ALL_PROXY": PROXY}, "https://a.example", PROXY),
        ({"ALL_PROXY": PROXY, "https_proxy": "http://other:1"}, "https://a.example", "http://other:1"),
        ({"https_proxy": "http://small:1", "HTTPS_PROXY": PROXY}, "https://a.example", "http://small:1"),
        ({"HTTPS_PROXY": ""}, "https://a.example", ""),
        ({"HTTPS_PROXY": "proxy:3128"}, "https://a.example", "http://proxy:3128"),
        ({"HTTPS_PROXY": "socks5://proxy:1080"}, "https://a.example", "socks5://proxy:1080"),
    ],
)
def test_by_the_scheme_of_the_address(environ: dict[str, str], url: str, proxy: str) -> None:
    assert proxy_for(url, environ) == proxy


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "localhost.", "a.localhost", "127.0.0.1", "127.8.9.1:9443", "[::1]:9"]
)
def test_never_for_this_machine(host: str) -> None:
    assert proxy_for(f"http://{host}/x", ALL) == proxy_for(f"https://{host}/x", {"ALL_PROXY": PROXY}) == ""


@pytest.mark.parametrize(
    ("no_proxy", "host", "is_excepted"),
    [
        ("*", "a.example", True),
        ("a.example", "a.example", True),
        ("A.Example", "a.example", True),
        ("example", "a.example", True),
        (".example", "a.example", True),
        ("*.example", "a.example", True),
        ("ample", "a.example", False),
        ("b.example, a.example", "a.example", True),
        ("a.example:443", "a.example", True),
        ("a.example:8443", "a.example", False),
        ("a.example:8443", "a.example:8443", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.0/8", "ten.example", False),
        ("fd00::/8", "[fd00::7]:9", True),
        ("", "a.example", False),
        (" , ", "a.example", False),
    ],
)
def test_what_no_proxy_names(no_proxy: str, host: str, is_excepted: bool) -> None:
    assert (proxy_for(f"https://{host}", {**ALL, "NO_PROXY": no_proxy}) == "") is is_excepted


def test_no_login_is_shown() -> None:
    assert without_login("http://ann:s3cret@proxy:3128/") == "http://proxy:3128"
