"""Files as older versions of clew wrote them, one folder per version. `make` writes them; tests read all of them."""
