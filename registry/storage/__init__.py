"""Where blobs lie: `store()` is the room that SLUICEGATE_BLOB_STORE names, with the bytes of every blob by their sha256.

`port` says what an adapter does, `folder` and `s3` are the two there are; tests/contracts/test_blob_store*.py hold both to it.
"""

from registry.storage.blobs import Blobs, adapter, store
from registry.storage.folder import FolderStore
from registry.storage.port import CHUNK_BYTES, BlobStore, Place, Readable, ReceivedPart, SignedPart, chunks_of

__all__ = [
    "CHUNK_BYTES",
    "BlobStore",
    "Blobs",
    "FolderStore",
    "Place",
    "Readable",
    "ReceivedPart",
    "SignedPart",
    "adapter",
    "chunks_of",
    "store",
]
