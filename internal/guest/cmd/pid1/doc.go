// Package pid1 is PID 1 of a sandbox. It protects itself from the processes inside,
// applies the network policy before anything else runs, starts the main process, answers
// signed requests on the control socket, reaps orphans, and ends the sandbox at its
// deadline, when its lease expires, or on SIGTERM from outside.
package pid1
