"""What may happen to models, releases and blobs: one function per verb."""

from registry.actions.aliases import set_alias
from registry.actions.attestations import attest, rotate_key, sign_release
from registry.actions.blobs import put_blob
from registry.actions.drafts import (
    HOUSEKEEPING,
    HOUSEKEEPING_EVERY,
    add_file,
    create_draft,
    discard_draft,
    purge_drafts,
)
from registry.actions.garbage_collection import collect_unused, run_housekeeping
from registry.actions.rechecks import recheck_blob
from registry.actions.releases import grant_waiver, seal
from registry.actions.retiring import restore, retire
from registry.actions.reviews import comment_on, resolve_comment, write_note
from registry.actions.served_models import change_model, create_model
from registry.actions.uploads import (
    SIGNED_FOR_S,
    SWEEP,
    VERIFY,
    abort_upload,
    begin_upload,
    complete_upload,
    note_failure,
    plan_of,
    sign_parts,
    sweep_uploads,
    verify,
)

__all__ = [
    "HOUSEKEEPING",
    "HOUSEKEEPING_EVERY",
    "SIGNED_FOR_S",
    "SWEEP",
    "VERIFY",
    "abort_upload",
    "add_file",
    "attest",
    "begin_upload",
    "change_model",
    "collect_unused",
    "comment_on",
    "complete_upload",
    "create_draft",
    "create_model",
    "discard_draft",
    "grant_waiver",
    "note_failure",
    "plan_of",
    "purge_drafts",
    "put_blob",
    "recheck_blob",
    "resolve_comment",
    "restore",
    "retire",
    "rotate_key",
    "run_housekeeping",
    "seal",
    "set_alias",
    "sign_parts",
    "sign_release",
    "sweep_uploads",
    "verify",
    "write_note",
]
