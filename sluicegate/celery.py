"""The Celery application. Its tasks live in each app's `tasks.py`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "sluicegate.settings")
# Django's system checks judge the code, not this machine, and load every page to do so: `make test` asks them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "true")
app = Celery("sluicegate")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
