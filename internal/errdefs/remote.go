package errdefs

// Remote is an error whose text has parts that another server chose, or that describe this
// machine. Public says as much of it as may be told to whoever asked from outside.
type Remote struct {
	Err  error
	Text string // what Public returns
}

// Error is the whole text.
func (e *Remote) Error() string { return e.Err.Error() }

// Public is the text without what the other server said.
func (e *Remote) Public() string { return e.Text }

// Unwrap returns the error.
func (e *Remote) Unwrap() error { return e.Err }
