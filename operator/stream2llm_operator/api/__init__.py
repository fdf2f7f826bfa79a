"""The resource StreamingPrefill: its types, which are the one source of the CRD, and their documents."""
