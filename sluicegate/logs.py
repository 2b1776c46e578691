"""How structured log calls become lines: through the standard library's loggers, as `event key=value …`."""

from __future__ import annotations

import structlog


def configure() -> None:
    """From now on, structlog writes to the handlers of settings.LOGGING, tracebacks without local variables: those hold secrets."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"], drop_missing=True),
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
