"""What runs inside the inference server. Its bytes are part of the runtime image's digest."""
