"""One module per page: its content and its forms. Forms call the same actions as the API."""
