"""The web process."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")
django_application = get_asgi_application()

from sluicegate.body_middleware import BodyMiddleware  # noqa: E402  (settings first)
from sluicegate.checks import refuse_unsafe_start  # noqa: E402
from sluicegate.upload_middleware import UploadMiddleware  # noqa: E402

application = BodyMiddleware(UploadMiddleware(django_application))
refuse_unsafe_start()
