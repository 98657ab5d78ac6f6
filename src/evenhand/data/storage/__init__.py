"""Where the files of data sets lie, and how missing ones get there."""
