//go:build !linux

package engine

// defaultSeccomp is available on Linux only.
func defaultSeccomp() (string, error) { return "", nil }
