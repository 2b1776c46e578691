"""REST views of the registry: parse the request, call an action or query, render the answer."""
