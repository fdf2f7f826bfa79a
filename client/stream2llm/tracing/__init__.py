"""OpenTelemetry traces of streams, off unless an endpoint is given."""
