//go:build !linux

package engine_test

const unprivilegedHost = "ENGINETEST_UNPRIVILEGED_HOST"

func openUnprivileged() int { return 1 }
