"""The files of a release: their tree, the text of one file, and the facts of its header."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db.models import Case, When
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.safestring import SafeString

from accounts.api.requests import actor_of
from accounts.core.addresses import API
from registry.core.formats import kind_of
from registry.core.lifecycle import FileRole
from registry.core.text_diff import lines_of
from registry.models import ReleaseFile
from registry.queries import get_file
from registry.queries.file_headers import remembered_facts
from registry.queries.file_text import text_of
from registry.queries.reviews import comments_of
from web.code.hidden import warning_of
from web.code.lines import html_of
from web.pages.release_frame import frame, readable_release

FILES_PER_PAGE, LINES_PER_PAGE = 200, 2_000


@dataclass(frozen=True)
class NumberedLine:
    number: int
    html: SafeString


@login_required
def files(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """The tree, code first; `?q=` narrows it to paths that hold the words."""
    found = readable_release(actor_of(request), slug, number)
    wanted = request.GET.get("q", "").strip()
    is_read_later = Case(When(role=FileRole.CODE.value, then=0), default=1)  # code is what a reviewer reads first
    rows = found.files.select_related("blob").order_by(is_read_later, "path")
    rows = rows.filter(path__icontains=wanted.replace("\0", "")) if wanted else rows
    page = Paginator(rows, FILES_PER_PAGE).get_page(request.GET.get("page"))
    tree = [(folder, is_code, list(inside)) for (folder, is_code), inside in groupby(page, key=_place)]
    facts = {"page": page, "tree": tree, "q": wanted}
    return render(request, "registry/release_files.html", {**frame(found, "release_files"), **facts})


def _place(file: ReleaseFile) -> tuple[str, bool]:
    """Its folder, and whether it is code."""
    return file.path.rpartition("/")[0], file.role == FileRole.CODE.value


@login_required
def file(request: HttpRequest, slug: str, number: int, path: str) -> HttpResponse:
    """One file: its text within bounds, or that it is binary; and its header as a tree."""
    found = readable_release(actor_of(request), slug, number)
    held = get_file(found, path)
    facts = {
        "file": held,
        "download": f"{API}/models/{slug}/releases/{found.name}/files/{held.path}",
        "comments": comments_of(found).filter(path=held.path, side="new")[:100],
        **_header(held),
        **_text(request, held),
    }
    return render(request, "registry/release_file.html", {**frame(found, "release_files"), **facts})


def _text(request: HttpRequest, held: ReleaseFile) -> dict[str, Any]:
    """The page of lines that is asked for (`?page=`), the warning of all of them, and why there are none."""
    read = text_of(held.blob, is_named_text=held.role == FileRole.CODE.value)
    if read.text is None:
        return {"why_not": read.why_not}
    text = read.text.removeprefix("\ufeff")
    ends = "Windows line ends" if text.count("\r\n") and text.count("\r\n") == text.count("\n") else ""
    lines = lines_of(text.replace("\r\n", "\n") if ends else text)
    page = Paginator(lines, LINES_PER_PAGE).get_page(request.GET.get("page"))
    first = page.start_index() if lines else 1
    rows = [NumberedLine(at, html_of(line)) for at, line in enumerate(page, first)]
    return {
        "lines": rows,
        "line_pages": page,
        "line_count": len(lines),
        "is_whole": read.is_whole,
        "warning": warning_of(lines),
        "ends": ends,
    }


def _header(held: ReleaseFile) -> dict[str, Any]:
    """Facts of the file's header, with its tensors; empty if the header was not read or has none."""
    kind = kind_of(held.path)
    known = remembered_facts({held.blob_id}).get((held.blob_id, kind))
    if not known:
        return {}
    rest = {name: value for name, value in known.items() if name not in {"tensors", "inputs", "outputs"}}
    return {
        "kind": kind,
        "sides": [(side, known[side]) for side in ("inputs", "outputs", "tensors") if known.get(side)],
        "rest": rest,
    }
