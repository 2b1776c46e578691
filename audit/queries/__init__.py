"""Named reads of events, by who asks."""

from audit.queries.event_visibility import events_of_team, visible_events
from audit.queries.happenings import audience_of, happening_of, happening_rows

__all__ = ["audience_of", "events_of_team", "happening_of", "happening_rows", "visible_events"]
