"""What pulls jobs from a server and runs them under the credentials of the user that started it."""
