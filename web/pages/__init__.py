"""One module per page: what it shows and the forms it takes. Forms call the same actions as the API."""
