"""Objects of a job as documents, and the fields of objects that an API server returns. Pure."""
