//go:build !linux

package engine

// defaultSeccomp is known where the engines run.
func defaultSeccomp() (string, error) { return "", nil }
