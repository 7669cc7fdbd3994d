package record

import (
	"fmt"

	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// Parse reads the recorded policy. A sandbox from before there were any allows all.
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
