"""What every other package uses: settings, files, locks and background threads."""
