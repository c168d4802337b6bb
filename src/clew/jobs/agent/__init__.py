"""What pulls jobs from a server and runs them under the credentials of whoever started it."""
