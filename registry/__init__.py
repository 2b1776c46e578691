"""What a release is: the sealed bundle, its manifest, its bytes."""
