"""Models (prediction contracts), blobs, releases, their files and their waivers."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q

from accounts.models import Team, User
from registry.core.blob_lifecycle import BlobState
from registry.core.lifecycle import FileRole, ReleaseState
from registry.core.uploads import UploadState


class ServedModel(models.Model):
    """A named prediction contract owned by a team.

    `contract` is {inputs: [{name, data_type, dims}], outputs: [...]}; `objectives`, `gate_policy` and `rollout_policy`
    are plain JSON, read by `validators.core.policy` and `rollouts.core.policy`, and pinned by digest where they are used.
    `traffic_policy` is what gateways let through: `registry.core.traffic`.
    """

    slug = models.SlugField(unique=True, max_length=60)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="served_models")
    title = models.CharField(max_length=120, blank=True)
    description = models.TextField(blank=True)
    contract = models.JSONField(default=dict)
    objectives = models.JSONField(default=dict)
    gate_policy = models.JSONField(default=dict)
    rollout_policy = models.JSONField(default=dict)
    traffic_policy = models.JSONField(default=dict, blank=True)
    ownership = models.JSONField(default=dict, blank=True)  # who is called when it breaks: registry.core.ownership
    last_number = models.PositiveIntegerField(default=0)  # numbers are never reused
    version = models.PositiveIntegerField(default=1)  # If-Match
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["slug"]

    def __str__(self) -> str:
        return self.slug


class Blob(models.Model):
    """Bytes known by their sha256 (64 hex digits), stored once; there is a row only for bytes that were read and are so.

    Its primary key chooses the winner where several store the same bytes: `store_key` is where the winner's lie.
    """

    sha256 = models.CharField(primary_key=True, max_length=64)
    size_bytes = models.BigIntegerField()
    store_key = models.CharField(max_length=200)
    state = models.CharField(max_length=12, default=BlobState.VERIFIED)
    problem = models.TextField(blank=True)  # why it is quarantined
    part_size = models.BigIntegerField(null=True)  # None: it came whole
    part_sha256 = models.JSONField(default=list)  # of its parts, in order, each checked as it arrived
    collected_at = models.DateTimeField(null=True)  # when its bytes were deleted; details are in its Tombstone
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(state__in=[s.value for s in BlobState]), name="blob_state_known")
        ]


class Inspection(models.Model):
    """What a blob's header says, read once: the facts of these bytes under one kind of name (`registry.core.formats`).

    Only bytes without a problem have one. A row of an older `reader` is read again.
    """

    blob = models.ForeignKey(Blob, on_delete=models.CASCADE, related_name="inspections")
    kind = models.CharField(max_length=20)
    reader = models.PositiveSmallIntegerField()
    facts = models.JSONField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["blob", "kind"], name="inspection_once")]


class Release(models.Model):
    """An immutable bundle of a model, or the draft of one.

    A database trigger refuses any change to a release that is not a draft, but for `state` sealed ⇄ retired, `retired_at`
    and `version`. `manifest` holds the canonical bytes (RFC 8785) as text; sha256 of its UTF-8 is `digest`.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    model = models.ForeignKey(ServedModel, on_delete=models.PROTECT, related_name="releases")
    number = models.PositiveIntegerField(null=True)
    state = models.CharField(max_length=10, default=ReleaseState.DRAFT)
    spec = models.JSONField(default=dict)  # the release.yaml that was sent, checked
    expected_files = models.JSONField(
        default=list
    )  # [{path, sha256, size_bytes}] announced with the draft; empty: none were
    manifest = models.TextField(blank=True)
    digest = models.CharField(max_length=71, null=True)  # "sha256:<64 hex>"
    is_code_bearing = models.BooleanField(default=False)
    author = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    version = models.PositiveIntegerField(default=1)  # If-Match
    created_at = models.DateTimeField(auto_now_add=True)
    sealed_at = models.DateTimeField(null=True)
    retired_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(state__in=[s.value for s in ReleaseState]), name="release_state_known"),
            models.UniqueConstraint(fields=["model", "number"], name="release_number_once"),
            models.UniqueConstraint(fields=["model", "digest"], name="release_digest_once"),
            models.CheckConstraint(
                condition=Q(state="draft", number__isnull=True, digest__isnull=True)
                | (~Q(state="draft") & Q(number__isnull=False, digest__isnull=False, sealed_at__isnull=False)),
                name="release_sealed_whole",
            ),
        ]
        indexes = [
            models.Index(fields=["model", "-number"], name="release_newest_first"),
            # the search: a digest by its beginning
            models.Index(fields=["digest"], opclasses=["varchar_pattern_ops"], name="release_by_digest"),
            # the list of drafts: few beside all releases
            models.Index(fields=["-created_at", "id"], condition=Q(state="draft"), name="release_drafts"),
            # the inbox: releases sealed lately that may lack a waiver
            models.Index(
                fields=["sealed_at"], condition=Q(state="sealed", is_code_bearing=True), name="release_with_code"
            ),
        ]

    @property
    def name(self) -> str:
        """`r14`, or `draft` before it is sealed."""
        return f"r{self.number}" if self.number else "draft"

    def __str__(self) -> str:
        return f"{self.model_id}/{self.name}"


class ReleaseFile(models.Model):
    release = models.ForeignKey(Release, on_delete=models.CASCADE, related_name="files")
    path = models.CharField(max_length=300)  # relative, as in the release folder: artifact/model.onnx
    role = models.CharField(max_length=10, choices=[(r.value, r.value) for r in FileRole])
    blob = models.ForeignKey(Blob, on_delete=models.PROTECT, related_name="+")

    class Meta:
        ordering = ["path"]
        constraints = [models.UniqueConstraint(fields=["release", "path"], name="release_path_once")]


class Upload(models.Model):
    """A file of a draft on its way in, in parts. `registry.core.uploads` draws its life.

    `is_stored`: something of it may lie in the store that no blob names, so that a sweep looks. Every key in the store is
    a blob's or an upload's with `is_stored`.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    release = models.ForeignKey(Release, null=True, on_delete=models.SET_NULL, related_name="uploads")
    path = models.CharField(max_length=300)
    sha256 = models.CharField(max_length=64)  # announced, of the whole
    size_bytes = models.BigIntegerField()
    part_size = models.BigIntegerField()
    state = models.CharField(max_length=12, default=UploadState.OPEN)
    problem = models.TextField(blank=True)  # why it is quarantined, or why it could not be verified yet
    is_begun = models.BooleanField(default=False)  # the store knows of it
    store_id = models.CharField(max_length=1024, blank=True)  # the store's own name for it
    is_stored = models.BooleanField(default=True)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()  # unless a part is signed before

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(state__in=[s.value for s in UploadState]), name="upload_state_known"),
            models.UniqueConstraint(
                fields=["release", "path"], condition=Q(state__in=["open", "verifying"]), name="upload_once_under_way"
            ),
        ]
        indexes = [
            # the sweep
            models.Index(fields=["state", "expires_at"], condition=Q(is_stored=True), name="upload_to_sweep"),
        ]

    @property
    def store_key(self) -> str:
        """Used by this upload and never again."""
        return f"{self.sha256}/{self.id.hex}"


class UploadPart(models.Model):
    """The sha256 that a part was signed for last."""

    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, related_name="parts")
    number = models.PositiveIntegerField()  # from 1
    sha256 = models.CharField(max_length=64)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["upload", "number"], name="upload_part_once")]


class Waiver(models.Model):
    """A release manager's recorded word that this digest may run its own code. Append-only by trigger."""

    release = models.ForeignKey(Release, on_delete=models.PROTECT, related_name="waivers")
    manifest_digest = models.CharField(max_length=71)
    kind = models.CharField(max_length=20, default="code")
    reason = models.TextField()
    granted_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    granted_at = models.DateTimeField(auto_now_add=True)


class Attestation(models.Model):
    """A signed in-toto statement about a release, as a Sigstore bundle. Append-only by trigger.

    It is not part of the manifest, so that new evidence and new keys never change a release. `about` is the digest of what
    it tells: the manifest's, or that of the report whose evidence it carries.
    """

    release = models.ForeignKey(Release, on_delete=models.PROTECT, related_name="attestations")
    predicate_type = models.CharField(max_length=200)
    about = models.CharField(max_length=71)
    bundle = models.TextField()
    key_id = models.CharField(max_length=71)
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["release", "predicate_type", "about", "key_id"], name="attestation_once_per_key"
            )
        ]


class Tombstone(models.Model):
    """Unreferenced bytes: recoverable until `due_at`, then deleted. The row itself is never deleted.

    It names no row, so that it outlives them all: `evidence` says which releases had the bytes, with their digests.
    """

    sha256 = models.CharField(max_length=64)
    size_bytes = models.BigIntegerField()
    store_key = models.CharField(max_length=200)
    reason = models.TextField()
    evidence = models.JSONField(default=dict)  # {"releases": [{"release", "digest", "path"}]}
    marked_by = models.CharField(max_length=150)
    marked_at = models.DateTimeField()
    due_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=10, blank=True)  # deleted or restored, once it has ended

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["store_key"], condition=Q(ended_at__isnull=True), name="tombstone_one_open_per_key"
            ),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=True, outcome="")
                | Q(ended_at__isnull=False, outcome__in=["deleted", "restored"]),
                name="tombstone_outcome_known",
            ),
        ]
        indexes = [models.Index(fields=["sha256"], name="tombstone_by_sha256")]


class Alias(models.Model):
    """A name that points to a release of a model, such as `champion`; to none once it was cleared.

    A pointer and nothing else: no rollout, gate or server follows it. The database lets it change only one version at a
    time, together with the AliasEvent that tells of it, and never deletes it.
    """

    model = models.ForeignKey(ServedModel, on_delete=models.PROTECT, related_name="aliases")
    name = models.CharField(max_length=40)
    release = models.ForeignKey(Release, null=True, on_delete=models.PROTECT, related_name="aliases")
    version = models.PositiveIntegerField(default=1)  # If-Match
    changed_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["model", "name"], name="alias_once")]


class AliasEvent(models.Model):
    """One move of an alias. Append-only by trigger; `version` is the alias's own after the move."""

    alias = models.ForeignKey(Alias, on_delete=models.PROTECT, related_name="events")
    version = models.PositiveIntegerField()
    from_release = models.ForeignKey(Release, null=True, on_delete=models.PROTECT, related_name="+")
    to_release = models.ForeignKey(Release, null=True, on_delete=models.PROTECT, related_name="+")
    actor = models.CharField(max_length=150)
    reason = models.TextField(blank=True)
    at = models.DateTimeField()

    class Meta:
        ordering = ["-version"]
        constraints = [models.UniqueConstraint(fields=["alias", "version"], name="alias_event_once")]


class ReleaseNote(models.Model):
    """What people say of a release, outside its digest: plain text and tags, as of one version. Append-only by trigger.

    The note of now is that of the highest version; the others are its history.
    """

    release = models.ForeignKey(Release, on_delete=models.PROTECT, related_name="notes")
    version = models.PositiveIntegerField()
    text = models.TextField(blank=True)
    tags = models.JSONField(default=list)  # words, in the order in which they were given
    author = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    written_by = models.CharField(max_length=150)
    at = models.DateTimeField()

    class Meta:
        ordering = ["-version"]
        constraints = [models.UniqueConstraint(fields=["release", "version"], name="release_note_once")]


class ReviewComment(models.Model):
    """What a reviewer says of a section of a comparison, or of a line of a file in it. Never deleted; resolved at most once.

    `digest` and `against_digest` are those that were seen. `line` is one of the file `path`: of the newer release, or of the
    older one where `side` is old.
    """

    release = models.ForeignKey(Release, on_delete=models.PROTECT, related_name="comments")
    digest = models.CharField(max_length=71)
    against = models.ForeignKey(Release, null=True, on_delete=models.PROTECT, related_name="+")
    against_digest = models.CharField(max_length=71, blank=True)
    section = models.CharField(max_length=20)
    path = models.CharField(max_length=300, blank=True)
    side = models.CharField(max_length=3, default="new")
    line = models.PositiveIntegerField(null=True)
    text = models.TextField()
    author = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+")
    written_by = models.CharField(max_length=150)
    at = models.DateTimeField()
    resolved_by = models.CharField(max_length=150, blank=True)
    resolved_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(side__in=["old", "new"]), name="review_comment_side_known"),
            models.CheckConstraint(
                condition=Q(resolved_at__isnull=True, resolved_by="")
                | (Q(resolved_at__isnull=False) & ~Q(resolved_by="")),
                name="review_comment_resolved_whole",
            ),
        ]
        indexes = [models.Index(fields=["release", "-id"], name="review_comment_newest_first")]
