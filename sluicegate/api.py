"""API-wide rules."""
from rest_framework.pagination import CursorPagination as _Cursor
from rest_framework.views import exception_handler as problem_handler


class CursorPagination(_Cursor):
    ordering = "-pk"
