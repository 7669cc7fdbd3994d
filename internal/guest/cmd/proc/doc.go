// Package proc starts, finds, signals and kills the processes of a sandbox. It resolves
// users, drops the privileges that are PID 1's alone, opens terminals, and tracks which
// command an orphan descends from.
package proc
