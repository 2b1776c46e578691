"""What stands before Django in the web process: bodies, uploads, streams, waits and quotas, at no thread of their own."""
