"""Records of jobs and of what operators set: kept in memory, written to the database, shown by the API."""
