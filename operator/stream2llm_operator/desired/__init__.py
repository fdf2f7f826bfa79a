"""What should exist, as pure functions from a resource and a few facts to manifests."""
