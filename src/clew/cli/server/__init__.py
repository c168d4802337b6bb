"""Commands about a server and its accounts."""
