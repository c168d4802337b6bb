"""One module per scheduler, and the contract they share."""
