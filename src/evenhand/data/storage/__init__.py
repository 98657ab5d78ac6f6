"""The files of data sets: where they are stored, and how missing ones are downloaded."""
