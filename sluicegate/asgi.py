"""The web process."""

import gc
import os

import django
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")
django.setup()

from web.static_files import collect  # noqa: E402  (settings first)

collect()  # before the middleware looks for the files
django_application = get_asgi_application()

from django.conf import settings  # noqa: E402

from sluicegate.checks import refuse_unsafe_start  # noqa: E402
from sluicegate.front.bodies import BodyMiddleware  # noqa: E402
from sluicegate.front.collection import CollectionMiddleware  # noqa: E402
from sluicegate.front.messages import App  # noqa: E402
from sluicegate.front.rate_limits import RateLimits  # noqa: E402
from sluicegate.front.request_metrics import RequestMetrics  # noqa: E402
from sluicegate.front.streams import StreamMiddleware  # noqa: E402
from sluicegate.front.uploads import UploadMiddleware  # noqa: E402
from sluicegate.front.waits import WaitMiddleware  # noqa: E402

application: App = BodyMiddleware(StreamMiddleware(UploadMiddleware(WaitMiddleware(django_application))))
if settings.API_PER_MINUTE:
    application = RateLimits(application, settings.API_PER_MINUTE)
application = RequestMetrics(CollectionMiddleware(application))
refuse_unsafe_start()
# What was imported lives as long as the process: without it a full collection takes a tenth, and it would fall into somebody's request.
gc.freeze()
