"""One adapter for each way out: HTTP receivers, the mail server; and the encryption of what must be read again."""
