"""Agents of users: the endpoint that they ask, the record of what they asked and got, and who runs them."""
