package sandbox

// CloseDefaultClient lets go of the package's own client, so that a test can look for
// goroutines.
func CloseDefaultClient() error { return defaultClient().Close() }
