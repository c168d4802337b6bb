"""Small parts that every other package uses: settings, files, locks, processes, entry points and background threads."""
