"""Programs for maintainers: checks before a release, tests with other versions."""
