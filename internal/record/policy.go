package record

import (
	"fmt"

	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// Parse reads the recorded policy. A record without one is that of a container that another program
// has labelled, whose network nobody restricts.
func (n Network) Parse() (policy.Policy, error) {
	if n.Policy == "" {
		return policy.Policy{Mode: policy.AllowAll}, nil
	}
	p, err := policy.Parse(n.Policy)
	if err != nil {
		return p, fmt.Errorf("the recorded network policy can't be read: %w", err)
	}
	return p, nil
}
