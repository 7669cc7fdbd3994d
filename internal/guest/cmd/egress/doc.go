// Package egress enforces the network policy of a sandbox, from inside PID 1. Kernel rules
// (nftables) drop what the policy does not allow and redirect the rest where names decide:
// DNS queries to a filter, and TCP connections to a proxy that finds the name of the host
// in what the client sends first. For names with secrets the proxy ends TLS and sets
// headers. A bounded log records what was allowed and what was blocked.
package egress
