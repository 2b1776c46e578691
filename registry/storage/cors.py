"""Whether the bucket lets pages of an address send parts to it: its CORS rule, asked as a browser asks.

Source: Fetch standard, CORS-preflight. SeaweedFS without a rule lets everybody in, AWS nobody.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from functools import lru_cache
from typing import Final
from urllib.parse import quote, urlsplit

from django.conf import settings

from ledger.core.proxies import proxy_for
from registry.storage.blobs import adapter

_HEADER: Final = "x-amz-checksum-sha256"
_WITHIN_S: Final = 3.0
#: An answer holds so long.
_REMEMBERED_S: Final = 300.0


def is_bucket() -> bool:
    """Whether parts go to a bucket, and not through this installation."""
    return str(settings.BLOB_STORE).startswith("s3://")


def store_origin() -> str:
    """`https://s3.example.com` where browsers send parts to; empty where that is this installation itself."""
    if not is_bucket():
        return ""
    from registry.storage.s3 import S3Store

    store = adapter()
    return store.public_origin() if isinstance(store, S3Store) else ""


def cors_problem(origin: str) -> str:
    """What keeps pages of this origin from sending parts, with the command to run; empty where nothing does. Remembered."""
    return (
        _asked(settings.BLOB_STORE, store_origin(), origin, int(time.monotonic() / _REMEMBERED_S))
        if is_bucket()
        else ""
    )


@lru_cache(maxsize=64)
def _asked(place: str, store: str, origin: str, moment: int) -> str:
    import httpx  # here: it brings rich and click, and every process loads this file

    bucket = urlsplit(place).netloc
    url = f"{store}/{quote(bucket)}/sluicegate-cors-check" if bucket not in store else f"{store}/sluicegate-cors-check"
    headers = {
        "Origin": origin, "Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": _HEADER,
    }  # fmt: skip
    try:
        proxy = proxy_for(url, os.environ) or None
        context = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)
        answer = httpx.options(url, headers=headers, timeout=_WITHIN_S, verify=context, proxy=proxy, trust_env=False)
    except httpx.HTTPError as error:
        return f"The bucket {bucket} does not answer at {store}: {error}. Check SLUICEGATE_S3_PUBLIC_ENDPOINT."
    allowed = answer.headers.get("Access-Control-Allow-Origin", "")
    methods = answer.headers.get("Access-Control-Allow-Methods", "")
    names = answer.headers.get("Access-Control-Allow-Headers", "").lower()
    if allowed in ("*", origin) and "PUT" in methods and (_HEADER in names or "*" in names):
        return ""
    return f"The bucket {bucket} does not let pages of {origin} send to it. Run: {command(bucket, origin)}"


def command(bucket: str, origin: str) -> str:
    """What sets the CORS rule."""
    rule = {"AllowedOrigins": [origin], "AllowedMethods": ["PUT"], "AllowedHeaders": [_HEADER], "MaxAgeSeconds": 3600}
    return f"aws s3api put-bucket-cors --bucket {bucket} --cors-configuration '{json.dumps({'CORSRules': [rule]})}'"
