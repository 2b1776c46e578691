from django.apps import AppConfig


class SluicegateConfig(AppConfig):
    name = "sluicegate"

    def ready(self) -> None:
        # Every process that can enqueue must know the Celery app, not only workers.
        import sluicegate.celery
        import sluicegate.checks  # noqa: F401
        from sluicegate.logs import configure

        configure()
