package plan

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
)

// Constraints on nodes, in Swarm's syntax: an attribute, == or !=, and a value, which is compared
// without regard to case.
var (
	constraintKey   = regexp.MustCompile(`(?i)^(node\.(id|hostname|role|ip|platform\.(os|arch)|labels\.[a-z0-9_.-]+)|engine\.labels\.[a-z0-9_.-]+)$`)
	constraintValue = regexp.MustCompile(`(?i)^[a-z0-9:\-_\s.*()?+\[\]\\^$|/]+$`)
)

func splitConstraint(text string) (key, value string, equal bool) {
	key, value, equal = strings.Cut(text, "==")
	if !equal {
		key, value, _ = strings.Cut(text, "!=")
	}
	return strings.TrimSpace(key), strings.TrimSpace(value), equal
}

func checkPlacement(constraints []string) (problems []error) {
	for _, c := range constraints {
		key, value, _ := splitConstraint(c)
		switch {
		case !constraintKey.MatchString(key):
			problems = append(problems, fmt.Errorf("WithPlacement: %q: use one of node.id, node.hostname, node.role, node.ip, node.platform.os, node.platform.arch, node.labels.NAME and engine.labels.NAME, then == or != and a value", c))
		case !constraintValue.MatchString(value):
			problems = append(problems, fmt.Errorf("WithPlacement: %q: %q can't be a value", c, value))
		}
	}
	return problems
}

// Matches reports whether a node fulfils all constraints. A label that it does not have is empty.
func Matches(n engine.Node, constraints []string) bool {
	for _, c := range constraints {
		key, value, equal := splitConstraint(c)
		if matches(n, key, value) != equal {
			return false
		}
	}
	return true
}

func matches(n engine.Node, key, value string) bool {
	got := ""
	switch lower := strings.ToLower(key); {
	case lower == "node.id":
		got = n.ID
	case lower == "node.hostname":
		got = n.Hostname
	case lower == "node.role":
		got = "worker"
		if n.Manager {
			got = "manager"
		}
	case lower == "node.ip":
		return isWithin(n.Addr, value)
	case lower == "node.platform.os":
		got = n.OS
	case lower == "node.platform.arch":
		got = n.Arch // as uname has it
	case strings.HasPrefix(lower, "node.labels."):
		got = n.Labels[key[len("node.labels."):]]
	case strings.HasPrefix(lower, "engine.labels."):
		got = n.EngineLabels[key[len("engine.labels."):]]
	}
	return strings.EqualFold(got, value)
}

// isWithin reports whether an address is the one of value, or in its network.
func isWithin(addr, value string) bool {
	ip, err := netip.ParseAddr(addr)
	if err != nil {
		return false
	}
	if network, err := netip.ParsePrefix(value); err == nil {
		return network.Contains(ip)
	}
	one, err := netip.ParseAddr(value)
	return err == nil && one == ip
}
