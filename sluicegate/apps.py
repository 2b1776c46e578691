from django.apps import AppConfig


class SluicegateConfig(AppConfig):
    name = "sluicegate"

    def ready(self) -> None:
        # Every process that can enqueue must know the Celery app, not only workers.
        import sluicegate.celery
        import sluicegate.checks  # noqa: F401
        from ledger.adapters.files import keep_private
        from sluicegate.logs import configure
        from sluicegate.management_address import serve_as_configured

        keep_private()  # other users must not read uploads, logs and servers' folders
        configure()
        serve_as_configured()
