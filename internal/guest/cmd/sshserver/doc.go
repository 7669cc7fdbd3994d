// Package sshserver serves a sandbox's clients: this module's with the channels of SSH alone
// (see package wire), others with standard SSH. The verb serve has one client, on
// standard input and output: its commands, sessions as sshd has them, forwarded
// connections, and channels to PID 1 and to the keeper. The keeper, the verb keep, runs
// detached commands and holds the end of their output for whoever attaches.
package sshserver
