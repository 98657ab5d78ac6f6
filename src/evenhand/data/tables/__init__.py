"""Users' tables: read from files, turned into numbers, and dealt to clients."""
