from django.db.migrations.operations.base import Operation


class Together(Operation):
    """Operations on separate tables as one step: Django renders its models once instead of after each operation."""

    def __init__(self, *operations):
        self.operations = operations

    def state_forwards(self, app_label, state):
        state.__dict__.pop("apps", None)
        for operation in self.operations:
            operation.state_forwards(app_label, state)

    def database_forwards(self, app_label, schema_editor, from_state, to_state):
        for operation in self.operations:
            operation.database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label, schema_editor, from_state, to_state):
        for operation in reversed(self.operations):
            operation.database_backwards(app_label, schema_editor, from_state, to_state)
