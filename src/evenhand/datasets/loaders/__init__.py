"""One data set, or one format of users' files, in each module."""
